#!/usr/bin/env python3
"""Compares `lathe import` and `lathe export --format peft` of adapters with the package peft, for
LoRA and DoRA on small GPT-2 and Llama models with random weights. The weights that `lathe merge`
writes must agree with peft's merge_and_unload() to 1e-5.

  tests/oracles/peft/oracle.py LATHE

Exits with 77 and prints the reason if torch, transformers, peft or safetensors is missing both in
this interpreter and in the one that LATHE_HF_PYTHON names. The weights merged with another
lora_alpha, and the weights of the base model without adapters, must differ.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import packages  # noqa: E402

PACKAGES = ["torch", "transformers", "peft", "safetensors"]
TOLERANCE = 1e-5


class Bench:
    def __init__(self, lathe, folder):
        self.lathe, self.folder = lathe, folder

    def call(self, *words):
        done = subprocess.run([self.lathe, *map(str, words)], capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, f"lathe {words}: exit {done.returncode}\n{done.stdout}{done.stderr}"

    def merged_by_lathe(self, run):
        """Merges an adapter run with Lathe, exports the result and returns its tensors."""
        from safetensors.torch import load_file

        self.call("merge", run, "--out", f"{run}-merged")
        self.call("export", f"{run}-merged", "--out", f"{run}-exported")
        return load_file(self.folder / f"{run}-exported/model.safetensors")


def difference(ours, theirs):
    """Returns the largest difference of tensors with the same name. `theirs` may have additional
    tensors, such as tied heads."""
    shared = [name for name in ours if name in theirs]
    assert len(shared) == len(ours), sorted(set(ours) - set(theirs))
    return max((ours[n].float() - theirs[n].float()).abs().max().item() for n in shared)


def base_model(kind):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=32, vocab_size=256))
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, hidden_size=16,
                                        intermediate_size=24, max_position_embeddings=32, vocab_size=256))


def compare(bench, kind, dora, some):
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model

    name = f"{kind}-{'dora' if dora else 'lora'}{'-some' if some else ''}"
    hf = bench.folder / f"{name}-hf"
    base_model(kind).save_pretrained(hf)
    bench.call("import", hf, "--out", f"{name}-base", "--tokenizer", "none")
    targets = {"gpt2": ["c_attn"], "llama": ["q_proj", "down_proj"]}[kind] if some else {
        "gpt2": ["c_attn", "c_proj", "c_fc"],
        "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}[kind]

    # Import adapters that peft wrote.
    peft = get_peft_model(base_model(kind), LoraConfig(
        r=3, lora_alpha=5, target_modules=targets, use_dora=dora, fan_in_fan_out=kind == "gpt2", task_type="CAUSAL_LM",
        init_lora_weights=False))
    with torch.no_grad():
        for path, p in peft.named_parameters():
            if "magnitude" in path:
                p.mul_(1 + 0.3 * torch.rand_like(p))
    theirs = bench.folder / f"{name}-theirs"
    peft.save_pretrained(theirs)
    bench.call("import", theirs, "--base", f"{name}-base", "--out", f"{name}-in")
    expected = peft.merge_and_unload().state_dict()
    ours = bench.merged_by_lathe(f"{name}-in")
    assert difference(ours, expected) < TOLERANCE, (name, difference(ours, expected))
    assert difference(ours, base_model(kind).state_dict()) > 1e-2, "the control: adapters change nothing"

    # Export the adapters again, and load them with peft.
    bench.call("export", f"{name}-in", "--format", "peft", "--out", f"{name}-out")
    out = bench.folder / f"{name}-out"
    again = PeftModel.from_pretrained(base_model(kind), out).merge_and_unload().state_dict()
    assert difference(ours, again) < TOLERANCE, (name, difference(ours, again))
    config = json.loads((out / "adapter_config.json").read_text())
    config["lora_alpha"] = 9
    (out / "adapter_config.json").write_text(json.dumps(config))
    wrong = PeftModel.from_pretrained(base_model(kind), out).merge_and_unload().state_dict()
    assert difference(ours, wrong) > 1e-3, "the control: another factor"
    print(f"{name}: merged weights differ by {difference(ours, expected):.1e} after import, and by "
          f"{difference(ours, again):.1e} after export")


def main():
    packages.require(PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(sys.argv[1]).resolve(), Path(folder))
        for kind in ["llama", "gpt2"]:
            for dora in [False, True]:
                for some in [False, True]:
                    compare(bench, kind, dora, some)


if __name__ == "__main__":
    main()
