// BestCandidates: of all continuations of a sentence's beams the best, by log-probability.
//
// Letters: B sentences, K beams, V vocabulary.

#include "candidates.h"

#include <algorithm>

#include "vectors.h"

namespace leanseq {
namespace {

// The best so far: score descending, among equal ones the earlier first.
struct Best {
  float* scores;
  int64_t* places;
  int64_t wanted, found = 0;

  void consider(float score, int64_t place) {
    if (found == wanted && !(score > scores[wanted - 1])) return;
    int64_t at = found < wanted ? found++ : wanted - 1;
    for (; at > 0 && score > scores[at - 1]; --at) {
      scores[at] = scores[at - 1];
      places[at] = places[at - 1];
    }
    scores[at] = score;
    places[at] = place;
  }
};

// The row of logits [V], and the largest of each of its groups.
KERNEL Row look_at(const float* logits, int64_t vocabulary, float sum_log_probs, float* maxima) {
  Floats highest = all(-INFINITY);
  for (int64_t i = 0; i < vocabulary; i += kGroup) {
    const Floats a = largest(load(logits + i), load(logits + i + kLanes));
    const Floats b = largest(load(logits + i + 2 * kLanes), load(logits + i + 3 * kLanes));
    maxima[i / kGroup] = maximum(largest(a, b));
    highest = largest(highest, largest(a, b));
  }
  const float top = maximum(highest);
  Floats totals[4] = {};
  for (int64_t i = 0; i < vocabulary; i += kGroup) {
    for (int part = 0; part < 4; ++part) {
      totals[part] += exp2((load(logits + i + kLanes * part) - top) * kLog2E);
    }
  }
  const float log_sum = std::log(sum((totals[0] + totals[1]) + (totals[2] + totals[3])));
  return {top, log_sum, sum_log_probs};
}

// Each of scores [count] that may be among the best, its place counted from first_place.
KERNEL_PART void consider_all(const float* scores, int64_t count, int64_t first_place, Best& best) {
  by_lanes(count, [&](int64_t i, auto part) __attribute__((always_inline)) {
    if (best.found == best.wanted && part == kLanes &&
        !(maximum(load(scores + i)) > best.scores[best.wanted - 1])) {
      return;
    }
    for (int64_t j = 0; j < part; ++j) best.consider(scores[i + j], first_place + i + j);
  });
}

// scores [count] of logits of that row.
KERNEL_PART void score_all(const Row& row, const float* logits, int64_t count, float* scores) {
  by_lanes(count, [&](int64_t i, auto part) __attribute__((always_inline)) {
    const Floats x = ((load(logits + i, part) - row.top) - row.log_sum) + row.sum_log_probs;
    std::memcpy(scores + i, &x, part * sizeof(float));
  });
}

// The best continuations of one sentence lie in the best groups: as rounding keeps order, a group's
// score is that of its best member.
KERNEL void choose_best(const std::vector<Row>& rows, float* maxima, int64_t groups,
                        const Logits& logits, Best best_groups, Best& best) {
  if (std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.is_broken(); })) {
    for (int64_t i = 0; i < best.wanted; ++i) best.consider(NAN, i);  // for the search to see
    return;
  }
  for (size_t beam = 0; beam < rows.size(); ++beam) {
    float* scores = maxima + beam * groups;
    score_all(rows[beam], scores, groups, scores);
    consider_all(scores, groups, beam * groups, best_groups);
  }
  std::sort(best_groups.places, best_groups.places + best_groups.found);
  for (int64_t rank = 0; rank < best_groups.found; ++rank) {
    const int64_t place = best_groups.places[rank], beam = place / groups;
    float scores[kGroup];
    score_all(rows[beam], logits.group(beam, place % groups, scores), kGroup, scores);
    consider_all(scores, kGroup, place * kGroup, best);
  }
}

// Logits that lie in memory.
class StoredLogits : public Logits {
 public:
  // first: of the sentence's [K,V].
  StoredLogits(const float* first, int64_t vocabulary) : first_(first), vocabulary_(vocabulary) {}

  const float* group(int64_t beam, int64_t group, float*) const override {
    return first_ + beam * vocabulary_ + group * kGroup;
  }

 private:
  const float* first_;
  int64_t vocabulary_;
};

// logits [B,K,V], sum_log_probs [B,K,1], how many [1], and what only the function's own nodes read
// -> scores, token ids, parents [B,how many]
void best_candidates(const Context& context) {
  const Tensor logits = context.input(0), sums = context.input(1), count = context.input(2);
  expect(logits.rank == 3 && sums.rank == 3 && sums.dims[0] == logits.dims[0] &&
             sums.dims[1] == logits.dims[1] && sums.dims[2] == 1,
         "logits [B,K,V], sum_log_probs [B,K,1], one count");
  const int64_t sentences = logits.dims[0], beams = logits.dims[1], vocabulary = logits.dims[2];
  const Chosen chosen(context, sentences, beams, vocabulary, count);
  context.parallel(sentences, 8 * logits.count(), [&](int64_t first, int64_t last) {
    const int64_t groups = vocabulary / kGroup;
    std::vector<float> maxima(beams * groups);
    std::vector<Row> rows(beams);
    for (int64_t sentence = first; sentence < last; ++sentence) {
      const float* its_logits = logits.as<float>() + sentence * beams * vocabulary;
      for (int64_t beam = 0; beam < beams; ++beam) {
        rows[beam] = look_at(its_logits + beam * vocabulary, vocabulary,
                             sums.as<float>()[sentence * beams + beam],
                             maxima.data() + beam * groups);
      }
      chosen.choose(sentence, rows, maxima.data(), StoredLogits(its_logits, vocabulary));
    }
  });
}

}  // namespace

bool Row::is_broken() const { return std::isnan((top - log_sum) + sum_log_probs); }

Chosen::Chosen(const Context& context, int64_t sentences, int64_t beams, int64_t vocabulary,
               const Tensor& count)
    : vocabulary_(vocabulary) {
  expect(count.count() == 1, "one count of candidates");
  wanted_ = *count.as<int64_t>();
  expect(vocabulary > 0 && vocabulary % kGroup == 0, "a vocabulary that is a multiple of 64");
  expect(wanted_ > 0 && wanted_ <= beams * vocabulary, "no more candidates than continuations");
  scores_ = context.output(0, {sentences, wanted_}).as<float>();
  tokens_ = context.output(1, {sentences, wanted_}).as<int32_t>();
  parents_ = context.output(2, {sentences, wanted_}).as<int32_t>();
  expect(sentences == 0 || (scores_ && tokens_ && parents_), "all three outputs");
}

void Chosen::choose(int64_t sentence, const std::vector<Row>& rows, float* maxima,
                    const Logits& logits) const {
  std::vector<float> group_scores(wanted_);
  std::vector<int64_t> places(wanted_), group_places(wanted_);
  Best best{scores_ + sentence * wanted_, places.data(), wanted_};
  choose_best(rows, maxima, vocabulary_ / kGroup, logits,
              {group_scores.data(), group_places.data(), wanted_}, best);
  for (int64_t i = 0; i < wanted_; ++i) {
    tokens_[sentence * wanted_ + i] = static_cast<int32_t>(places[i] % vocabulary_);
    parents_[sentence * wanted_ + i] = static_cast<int32_t>(places[i] / vocabulary_);
  }
}

using ort::kFloat, ort::kInt32, ort::kInt64;
const Operator kBestCandidates("BestCandidates", {kFloat, kFloat, kInt64, kInt64}, 3,
                               {kFloat, kInt32, kInt32}, best_candidates);

}  // namespace leanseq
