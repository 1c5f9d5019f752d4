// The choice among the continuations of a sentence's beams.
#pragma once

#include <vector>

#include "operator.h"

namespace leanseq {

constexpr int64_t kGroup = 64;  // neighbours whose largest decides whether they are looked at

// What log_softmax(logits) + sum_log_probs takes of a row of logits: the largest, and the logarithm of
// the sum of exp(logit - top). Where one logit is no number or too large for one, none of its
// log-probabilities is.
struct Row {
  float top, log_sum, sum_log_probs;

  bool is_broken() const;
};

// The logits of a sentence's beams, group by group.
class Logits {
 public:
  virtual ~Logits() = default;
  // The logits of that group: where they lie, or put into room [kGroup].
  virtual const float* group(int64_t beam, int64_t group, float* room) const = 0;
};

// How the candidates of all sentences come out: scores, token ids, parents [B,wanted].
class Chosen {
 public:
  // They are the operator's first three outputs. Raises where there are not so many continuations.
  Chosen(const Context& context, int64_t sentences, int64_t beams, int64_t vocabulary,
         const Tensor& count);

  // The best of one sentence. rows [K]; maxima [K, V / kGroup], which become the scores.
  void choose(int64_t sentence, const std::vector<Row>& rows, float* maxima,
              const Logits& logits) const;

 private:
  int64_t vocabulary_, wanted_;
  float* scores_;
  int32_t *tokens_, *parents_;
};

}  // namespace leanseq
