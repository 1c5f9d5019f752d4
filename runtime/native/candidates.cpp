// BestCandidates: of all continuations of a sentence's beams the best, by log-probability.
//
// Letters: B sentences, K beams, V vocabulary.

#include <algorithm>
#include <vector>

#include "operator.h"
#include "vectors.h"

namespace leanseq {
namespace {

constexpr int64_t kGroup = 64;  // neighbours whose largest decides whether they are looked at

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

// What log_softmax(logits) + sum_log_probs takes of a row of logits. Where one logit is no number or
// too large for one, none of its log-probabilities is.
struct Row {
  const float* logits;
  float top, log_sum, sum_log_probs;

  bool is_broken() const { return std::isnan((top - log_sum) + sum_log_probs); }
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
  const float shift = top * kLog2E;
  for (int64_t i = 0; i < vocabulary; i += kGroup) {
    for (int part = 0; part < 4; ++part) {
      totals[part] += exp2(load(logits + i + kLanes * part) * kLog2E - shift);
    }
  }
  const float log_sum = std::log(sum((totals[0] + totals[1]) + (totals[2] + totals[3])));
  return {logits, top, log_sum, sum_log_probs};
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
// score is that of its best member. rows [K], maxima [K, V / kGroup], which become the scores.
KERNEL void choose(const std::vector<Row>& rows, float* maxima, int64_t groups, Best best_groups,
                   Best& best) {
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
    const int64_t place = best_groups.places[rank];
    const Row& row = rows[place / groups];
    float scores[kGroup];
    score_all(row, row.logits + place % groups * kGroup, kGroup, scores);
    consider_all(scores, kGroup, place * kGroup, best);
  }
}

// logits [B,K,V], sum_log_probs [B,K,1], how many [1], and what only the function's own nodes read
// -> scores, token ids, parents [B,how many]
void best_candidates(const Context& context) {
  const Tensor logits = context.input(0), sums = context.input(1), count = context.input(2);
  expect(logits.rank == 3 && sums.rank == 3 && sums.dims[0] == logits.dims[0] &&
             sums.dims[1] == logits.dims[1] && sums.dims[2] == 1 && count.count() == 1,
         "logits [B,K,V], sum_log_probs [B,K,1], one count");
  const int64_t sentences = logits.dims[0], beams = logits.dims[1], vocabulary = logits.dims[2];
  const int64_t wanted = *count.as<int64_t>();
  expect(vocabulary % kGroup == 0, "a vocabulary that is a multiple of 64");
  expect(wanted > 0 && wanted <= beams * vocabulary, "no more candidates than continuations");
  float* scores = context.output(0, {sentences, wanted}).as<float>();
  int32_t* tokens = context.output(1, {sentences, wanted}).as<int32_t>();
  int32_t* parents = context.output(2, {sentences, wanted}).as<int32_t>();
  if (sentences == 0) return;
  expect(scores && tokens && parents, "all three outputs");
  context.parallel(sentences, 8 * logits.count(), [&](int64_t first, int64_t last) {
    const int64_t groups = vocabulary / kGroup;
    std::vector<float> maxima(beams * groups), group_scores(wanted);
    std::vector<int64_t> places(wanted), group_places(wanted);
    std::vector<Row> rows(beams);
    for (int64_t sentence = first; sentence < last; ++sentence) {
      for (int64_t beam = 0; beam < beams; ++beam) {
        const int64_t row = sentence * beams + beam;
        rows[beam] = look_at(logits.as<float>() + row * vocabulary, vocabulary,
                             sums.as<float>()[row], maxima.data() + beam * groups);
      }
      Best best{scores + sentence * wanted, places.data(), wanted};
      choose(rows, maxima.data(), groups, {group_scores.data(), group_places.data(), wanted}, best);
      for (int64_t i = 0; i < wanted; ++i) {
        tokens[sentence * wanted + i] = static_cast<int32_t>(places[i] % vocabulary);
        parents[sentence * wanted + i] = static_cast<int32_t>(places[i] / vocabulary);
      }
    }
  });
}

}  // namespace

using ort::kFloat, ort::kInt32, ort::kInt64;
const Operator kBestCandidates("BestCandidates", {kFloat, kFloat, kInt64, kInt64}, 3,
                               {kFloat, kInt32, kInt32}, best_candidates);

}  // namespace leanseq
