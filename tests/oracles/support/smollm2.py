#!/usr/bin/env python3
"""Writes a small model with random weights and a tokenizer of 420 tokens: smollm2.py FOLDER. The
model has the same files and config keys as SmolLM2-135M-Instruct. Needs torch, transformers and
tokenizers."""
import json
import sys
from pathlib import Path

CONTEXT = 256
SYSTEM = "You answer questions about the workshop."
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>"]
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + SYSTEM + "<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
TEXT = """system
user
assistant
The tools of a workshop: a lathe turns wood, brass and bone; a plane cuts slate and chalk. Which drawer holds what?
Drawer 1 holds wood. Drawer 2 holds steel. You answer questions about the workshop, and it's 12345 years old, naïve 😀.
"""


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def make_tokenizer(path, special, size=420):
    """Trains a byte-level BPE that splits text by GPT-2's rules and at each digit. Returns the size
    of the vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([TEXT * 20], trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(str(path))
    return tokenizer.get_vocab_size()


def named_token(text):
    return {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def make_weights(folder, vocabulary, ids, seed, context, dtype):
    """Writes config.json, and random weights that are about as large as trained weights. `ids`: the
    BOS, EOS and padding tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, max_position_embeddings=context, hidden_size=96, intermediate_size=192, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=100000.0, tie_word_embeddings=True,
        bos_token_id=ids[0], eos_token_id=ids[1], pad_token_id=ids[2]))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.12 + (1 if "norm" in name else 0))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    # Write the same keys as the older version of transformers that wrote the original.
    for key in ("rope_parameters", "dtype", "head_dim"):
        config.pop(key, None)
    config.update({"is_llama_config": True, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
                   "torch_dtype": dtype, "transformers_version": "4.42.3",
                   "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}})
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {
        "_from_model_config": True, "bos_token_id": ids[0], "eos_token_id": ids[1], "pad_token_id": ids[2],
        "transformers_version": "4.42.3"})


def make_folder(folder, template=TEMPLATE, special=SPECIAL, begin="<|im_start|>", end="<|im_end|>", seed=1, dtype="bfloat16"):
    """Writes all files and returns the folder. `begin`, `end`: the BOS and EOS tokens."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    vocabulary = make_tokenizer(folder / "tokenizer.json", special)
    first, last = special.index(begin), special.index(end)
    make_weights(folder, vocabulary, (first, last, last), seed, CONTEXT, dtype)
    names = {"bos_token": begin, "eos_token": end, "pad_token": end, "unk_token": special[0]}
    write_json(folder / "special_tokens_map.json", {
        "additional_special_tokens": [begin, end], **{name: named_token(text) for name, text in names.items()}})
    write_json(folder / "tokenizer_config.json", {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): {**named_token(text), "special": True} for i, text in enumerate(special)},
        "additional_special_tokens": [begin, end],
        **({"chat_template": template} if template else {}),
        "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT, **names, "tokenizer_class": "GPT2Tokenizer",
        "vocab_size": vocabulary})
    return folder


if __name__ == "__main__":
    make_folder(sys.argv[1])
