#include "data/tokens/token_data.h"

#include "core/io/log.h"

namespace lathe {

void check_token_keys(const DataConfig& config, bool mixes) {
  const DataConfig initial;
  if (config.folds != initial.folds || config.flip != initial.flip || config.crop != initial.crop ||
      config.fold != initial.fold) {
    fail(Exit::usage, "data.folds, data.fold, data.flip and data.crop are for examples, and ",
         config.dir, " holds tokens; leave them out");
  }
  if (!mixes && !config.mix.empty())
    fail(Exit::usage, "data.mix is for mixtures (`lathe prepare --source`), and ", config.dir,
         " is not one; leave it out");
  const bool pads = config.packing == "examples";
  if (config.documents == "joined" && config.document_end >= 0 && !pads)
    fail(Exit::usage,
         "data.document_end has no effect with data.documents = \"joined\"; leave it out, or set "
         "data.documents = \"separate\"");
  if (pads && mixes)
    fail(Exit::usage, "data.packing = \"examples\" is not for mixtures, and ", config.dir,
         " is one; leave it out");
  if (pads && config.documents != initial.documents)
    fail(Exit::usage,
         "data.documents has no effect with data.packing = \"examples\", whose rows have one "
         "document each; leave it out");
}

std::unique_ptr<Data> open_tokens(const DataConfig& config) {
  check_token_keys(config, /*mixes=*/false);
  return std::make_unique<TokenData>(config.dir, config);
}

TokenData::TokenData(const fs::path& folder, const DataConfig& config)
    : folder_(folder), manifest_(read_manifest(folder)) {
  if (has_split(folder, "val", manifest_)) val_.emplace(folder, "val", manifest_);
  // If both splits are missing, open the training split nevertheless, since the resulting error
  // names the expected files.
  if (!val_ || has_split(folder, "train", manifest_)) train_.emplace(folder, "train", manifest_);

  facts_.task = "language";
  if (manifest_) {
    facts_.tokenizer = manifest_->tokenizer;
    facts_.vocab_size = manifest_->vocab_size;
  }
  facts_.pairs = manifest_ && manifest_->pairs;

  const bool pads = config.packing == "examples";
  if (config.documents != "separate" && !pads) return;
  document_end_ = config.document_end >= 0 ? config.document_end
                  : manifest_              ? manifest_->tokenizer.document_end()
                                           : -1;
  if (document_end_ < 0) {
    fail(Exit::usage, pads ? "data.packing = \"examples\"" : "data.documents = \"separate\"",
         " needs a token between documents, and ", folder.string(),
         manifest_ ? " has a tokenizer without a token that ends documents"
                   : " has no manifest.json",
         "; set data.document_end to its id");
  }
  if (!pads) {
    windows_.document_end = document_end_;
    return;
  }
  if (train_) train_documents_.emplace(*train_, document_end_);
  if (val_) val_documents_.emplace(*val_, document_end_);
}

std::unique_ptr<TrainingBatches> TokenData::training(const BatchSizes& sizes, uint64_t seed) const {
  LATHE_CHECK(train_, "there are no training tokens");
  if (train_documents_) return padded_training(*train_documents_, sizes, seed);
  return training_windows({{&*train_}}, sizes, seed, windows_);
}

std::unique_ptr<EvaluationBatches> TokenData::evaluation(const BatchSizes& sizes, int64_t batches,
                                                         at::Device device) const {
  LATHE_CHECK(val_, "there are no validation tokens");
  if (val_documents_) return padded_evaluation(*val_documents_, sizes, batches, device);
  return evaluation_windows({{&*val_}}, sizes, batches, device, windows_);
}

void TokenData::check_windows(const BatchSizes& sizes) const {
  if (train_documents_ && train_documents_->size() == 0)
    fail(Exit::data, folder_.string(), " has no training document of two tokens or more");
  const int64_t longer = train_documents_ ? train_documents_->count_longer(sizes.block_size) : 0;
  if (longer > 0) {
    log_warn(longer, " of the ", train_documents_->size(), " documents of ", folder_.string(),
             " are longer than a window of ", sizes.block_size, " tokens; they lose their end");
  }
  if (!train_documents_ && train_size() <= sizes.block_size) {
    fail(Exit::data, folder_.string(), " has ", train_size(),
         " training tokens, too few for windows of ", sizes.block_size,
         " tokens and the target of the last one; use more text or a shorter data.window");
  }
  if (document_end_ >= sizes.vocab_size) {
    fail(Exit::usage, "data.document_end = ", document_end_, " is beyond the vocabulary of ",
         sizes.vocab_size,
         ", so no document would end; set it to the id of the token between documents");
  }
  if (train_) train_->check_ids(sizes.vocab_size);
  if (val_) val_->check_ids(sizes.vocab_size);
}

std::string TokenData::hash() const {
  return (train_ ? train_->fingerprint() : "") + (val_ ? "-" + val_->fingerprint() : "");
}

bool TokenData::matches(const std::string& saved) const {
  const auto between = saved.find('-');
  if (!train_ || !train_->matches(saved.substr(0, between))) return false;
  return between == std::string::npos ? !val_ : val_ && val_->matches(saved.substr(between + 1));
}

void TokenData::verify(const std::function<bool()>& stop) const {
  if (train_) train_->verify(stop);
  if (val_) val_->verify(stop);
}

std::string TokenData::table() const {
  std::string text;
  if (!manifest_) {
    text = "  no manifest.json, and so no tokenizer and no checksums\n";
    for (const auto* split : {&train_, &val_}) text += *split ? (*split)->table() : "";
    return text;
  }

  text = str("  tokenizer ", manifest_->tokenizer.kind(), ", vocabulary ", manifest_->vocab_size,
             ", ", manifest_->dtype, ", largest id ", manifest_->largest_id,
             manifest_->marked ? ", prompts marked as not learned" : "", "\n");
  if (manifest_->documents.is_object()) {
    text += "  documents";
    for (const auto& [name, count] : manifest_->documents.items())
      text += str("  ", name, " ", json_text(count));
    text += "\n";
  }

  for (const auto* split : {&manifest_->train, &manifest_->val}) {
    for (const auto& s : *split)
      text += str("  ", s.file, "  ", s.tokens, " tokens  ", s.xxh3, "\n");
  }
  return text;
}

}  // namespace lathe
