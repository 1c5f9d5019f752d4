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

// What log_softmax(logits) + sum_log_probs takes of a row of logits.
struct Row {
  const float* logits;
  float top, log_sum, sum_log_probs;

  float score(float logit) const { return ((logit - top) - log_sum) + sum_log_probs; }
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
    for (int part = 0; part < 4; ++part) totals[part] += exp(load(logits + i + 16 * part) - top);
  }
  const float log_sum = std::log(sum((totals[0] + totals[1]) + (totals[2] + totals[3])));
  return {logits, top, log_sum, sum_log_probs};
}

// The best continuations of one sentence lie in the best groups: as rounding keeps order, a group's
// score is that of its best member. rows [K], maxima [K, V / kGroup].
void choose(const std::vector<Row>& rows, const float* maxima, int64_t groups, Best best_groups,
            Best& best) {
  const int64_t beams = static_cast<int64_t>(rows.size());
  for (int64_t place = 0; place < beams * groups; ++place) {
    best_groups.consider(rows[place / groups].score(maxima[place]), place);
  }
  const int64_t chosen = best_groups.found;
  // As many members are as good as the last of the groups wanted; fewer groups are all looked at.
  const float least = chosen == best_groups.wanted ? best_groups.scores[chosen - 1] : -INFINITY;
  std::sort(best_groups.places, best_groups.places + chosen);
  for (int64_t rank = 0; rank < chosen; ++rank) {
    const int64_t place = best_groups.places[rank];
    const Row& row = rows[place / groups];
    const float* members = row.logits + place % groups * kGroup;
    for (int64_t i = 0; i < kGroup; ++i) {
      const float score = row.score(members[i]);
      if (!(score < least)) best.consider(score, place * kGroup + i);
    }
  }
}

// logits [B,K,V], sum_log_probs [B,K,1], how many [1], and what only the function's own nodes read
// -> scores, token ids, parents [B,how many]
void best_candidates(const Context& context) {
  const Tensor logits = context.input(0), sums = context.input(1), count = context.input(2);
  expect(logits.rank == 3 && sums.rank == 3 && sums.dims[0] == logits.dims[0] &&
             sums.dims[1] == logits.dims[1] && count.count() == 1,
         "logits [B,K,V], sum_log_probs [B,K,1], one count");
  const int64_t sentences = logits.dims[0], beams = logits.dims[1], vocabulary = logits.dims[2];
  const int64_t wanted = *count.as<int64_t>();
  expect(vocabulary % kGroup == 0, "a vocabulary that is a multiple of 64");
  expect(wanted > 0 && wanted <= beams * vocabulary, "no more candidates than continuations");
  float* scores = context.output(0, {sentences, wanted}).as<float>();
  int32_t* tokens = context.output(1, {sentences, wanted}).as<int32_t>();
  int32_t* parents = context.output(2, {sentences, wanted}).as<int32_t>();
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
