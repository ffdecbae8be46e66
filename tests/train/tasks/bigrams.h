// Implements a minimal language model for tests of losses.
#pragma once

#include "nn/models/model.h"

namespace lathe::test {

/// A bigram model: the logits after token i are table[i] head^T. The constructor takes `table_` and
/// `head_`, both [V, C]; `headed_`, the value that has_head() returns; and `trained`, whether both
/// tensors are parameters.
struct Bigrams : Model {
  Variable table, head;
  bool headed;
  double softcap = 0;

  Bigrams(const at::Tensor& table_, const at::Tensor& head_, bool headed_, bool trained = true)
      : table(trained ? Variable::parameter(table_.clone(), "table") : Variable(table_.clone())),
        head(trained ? Variable::parameter(head_.clone(), "head") : Variable(head_.clone())),
        headed(headed_) {}
  Variable operator()(const at::Tensor& inputs) const override {
    return head_logits(features(inputs), head, softcap);
  }
  double logit_softcap() const override { return softcap; }
  bool has_head() const override { return headed; }
  Variable features(const at::Tensor& inputs) const override { return embedding(inputs, table); }
  const Variable& head_weight() const override { return head; }
  bool caches_keys() const override { return false; }
  void visit(Visit& v) override {
    v("table", table, Role::weight);
    v("head", head, Role::weight);
  }
  double flops_per_unit() const override { return 0; }
  std::unique_ptr<Model> clone() const override { return nullptr; }
};

}  // namespace lathe::test
