// BestContinuations: the product that makes the logits and the choice among them, without ever
// writing the logits down. For processors with AVX-512 VNNI, which multiplies bytes by bytes.
//
// Each row's product with a group of 64 vocabulary entries is looked at while it is in registers: its
// largest logit is kept, and its exponentials are summed up. The few groups that are chosen are
// multiplied once more, which gives the same bits.
//
// Letters: B sentences, K beams, N = B*K rows, D the width of a row, V vocabulary, L sentences whose
// log_probs are asked for.

#include "operator.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "candidates.h"
#include "vectors.h"

#define VNNI __attribute__((target("arch=x86-64-v4,avx512vnni")))

namespace leanseq {
namespace {

constexpr int kPanels = kGroup / kLanes;  // of a group: of kLanes entries each
constexpr int64_t kTile = 6;  // rows at a time: their sums and what is multiplied fill the registers
constexpr int64_t kParts = kLanes;   // at most so many of the vocabulary, whoever computes them
constexpr int64_t kPartGroups = 32;  // of a part, at least
constexpr float kNone = std::numeric_limits<float>::lowest();  // no logit was seen yet

struct Vocabulary {
  const uint8_t* weights;        // [V/16,D/4,16,4], 128 added to each
  const float *scales, *biases;  // [V]
  float scale;                   // of the rows
};

// The rows around 0, and what the weights' 128 adds to their products.
struct Rows {
  Rows(const Tensor& x, int64_t count, int64_t width)
      : values(count * width), excess(count), width(width) {
    const uint8_t* from = x.as<uint8_t>();
    for (int64_t row = 0; row < count; ++row) {
      int32_t sum = 0;
      for (int64_t i = row * width; i < (row + 1) * width; ++i) {
        values[i] = static_cast<int8_t>(from[i] - 128);
        sum += values[i];
      }
      excess[row] = 128 * sum;
    }
  }

  std::vector<int8_t> values;
  std::vector<int32_t> excess;
  const int64_t width;
};

// What kCount rows' products with a group sum up to. By name, as an array would be kept in memory.
template <int kCount>
struct Sums {
  __m512i a, b, c, d;  // of its panels
  Sums<kCount - 1> rest;

  VNNI KERNEL_PART void start(const int32_t* excess) {
    a = b = c = d = _mm512_set1_epi32(-*excess);
    rest.start(excess + 1);
  }
  // Four places of each row and of the entries of each panel.
  VNNI KERNEL_PART void add(const int8_t* values, int64_t width, __m512i a_entries,
                            __m512i b_entries, __m512i c_entries, __m512i d_entries) {
    int32_t four;
    std::memcpy(&four, values, sizeof four);
    const __m512i x = _mm512_set1_epi32(four);
    a = _mm512_dpbusd_epi32(a, a_entries, x);
    b = _mm512_dpbusd_epi32(b, b_entries, x);
    c = _mm512_dpbusd_epi32(c, c_entries, x);
    d = _mm512_dpbusd_epi32(d, d_entries, x);
    rest.add(values + width, width, a_entries, b_entries, c_entries, d_entries);
  }
  VNNI KERNEL_PART void store(int32_t* to) const {
    _mm512_storeu_si512(to, a);
    _mm512_storeu_si512(to + kLanes, b);
    _mm512_storeu_si512(to + 2 * kLanes, c);
    _mm512_storeu_si512(to + 3 * kLanes, d);
    rest.store(to + kGroup);
  }
};

template <>
struct Sums<0> {
  VNNI KERNEL_PART void start(const int32_t*) {}
  VNNI KERNEL_PART void add(const int8_t*, int64_t, __m512i, __m512i, __m512i, __m512i) {}
  VNNI KERNEL_PART void store(int32_t*) const {}
};

// products [kCount, kGroup] of rows with a group. Inlined, its sums would not stay in registers.
template <int kCount>
VNNI __attribute__((noinline)) void multiply(const Vocabulary& vocabulary, const Rows& rows,
                                             int64_t first, int64_t group, int32_t* products) {
  const int64_t width = rows.width, panel = width * kLanes;
  const uint8_t* weights = vocabulary.weights + group * kGroup * width;
  const int8_t* values = rows.values.data() + first * width;
  Sums<kCount> sums;
  sums.start(rows.excess.data() + first);
  for (int64_t i = 0; i < width; i += 4, weights += 4 * kLanes) {
    sums.add(values + i, width, _mm512_loadu_si512(weights), _mm512_loadu_si512(weights + panel),
             _mm512_loadu_si512(weights + 2 * panel), _mm512_loadu_si512(weights + 3 * panel));
  }
  sums.store(products);
}

// kLanes logits of a row, from entry on.
VNNI KERNEL_PART Floats logits(const Vocabulary& vocabulary, const int32_t* products,
                               int64_t entry) {
  Ints whole;
  std::memcpy(&whole, products, sizeof whole);
  return __builtin_convertvector(whole, Floats) *
             (load(vocabulary.scales + entry) * vocabulary.scale) +
         load(vocabulary.biases + entry);
}

// exp2 in fewer instructions: they round, and take the exponent, by themselves.
VNNI KERNEL_PART Floats exp2_here(const Floats& y) {
  const __m512 least = _mm512_max_ps(_mm512_set1_ps(-126.0f), (__m512)y);  // NaN stays
  const __m512 whole = _mm512_roundscale_ps(least, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return (Floats)_mm512_scalef_ps((__m512)exp2_of_rest((Floats)_mm512_sub_ps(least, whole)), whole);
}

// Of a row's logits in one part, as far as it was looked at.
struct Seen {
  Floats totals{};  // of exp(logit - top)
  float top = kNone;
};

// Where what is found goes. Of all groups: maxima [N, V/64], and logits of the first rows.
struct Findings {
  float* maxima;
  float* logits;
  int64_t groups, logged_rows;
};

template <int kCount>
VNNI KERNEL_PART void look_at_tile(const Vocabulary& vocabulary, const Rows& rows, int64_t first,
                                   int64_t group, Seen* seen, const Findings& to) {
  int32_t products[kCount * kGroup];
  multiply<kCount>(vocabulary, rows, first, group, products);
  for (int i = 0; i < kCount; ++i) {
    const int64_t row = first + i, at = row * to.groups + group;
    Floats x[kPanels];
    for (int panel = 0; panel < kPanels; ++panel) {
      x[panel] = logits(vocabulary, products + i * kGroup + panel * kLanes,
                        group * kGroup + panel * kLanes);
      if (row < to.logged_rows) store(to.logits + at * kGroup + panel * kLanes, x[panel]);
    }
    const float highest = maximum(largest(largest(x[0], x[1]), largest(x[2], x[3])));
    to.maxima[at] = highest;
    if (highest > seen[row].top) {
      seen[row].totals *= exp2(all((seen[row].top - highest) * kLog2E));
      seen[row].top = highest;
    }
    Floats powers[kPanels];
    for (int panel = 0; panel < kPanels; ++panel) {
      powers[panel] = exp2_here((x[panel] - seen[row].top) * kLog2E);
    }
    seen[row].totals += (powers[0] + powers[1]) + (powers[2] + powers[3]);
  }
}

// All rows' logits of a group. The weights of a group stay in the cache from tile to tile.
VNNI void look_at_group(const Vocabulary& vocabulary, const Rows& rows, int64_t count,
                        int64_t group, Seen* seen, const Findings& to) {
  int64_t row = 0;
  for (; row + kTile <= count; row += kTile) {
    look_at_tile<kTile>(vocabulary, rows, row, group, seen, to);
  }
  switch (count - row) {
    case 5: return look_at_tile<5>(vocabulary, rows, row, group, seen, to);
    case 4: return look_at_tile<4>(vocabulary, rows, row, group, seen, to);
    case 3: return look_at_tile<3>(vocabulary, rows, row, group, seen, to);
    case 2: return look_at_tile<2>(vocabulary, rows, row, group, seen, to);
    case 1: return look_at_tile<1>(vocabulary, rows, row, group, seen, to);
  }
}

// Of a row in each part: what was seen there, summed up. Parts that there are not weigh nothing.
struct Parts {
  float tops[kParts], totals[kParts];

  Parts() {
    std::fill_n(tops, kParts, kNone);
    std::fill_n(totals, kParts, 0.0f);
  }
};

VNNI void look_at_part(const Vocabulary& vocabulary, const Rows& rows, int64_t first_group,
                       int64_t last_group, int64_t part, std::vector<Parts>& parts,
                       const Findings& to) {
  const int64_t count = static_cast<int64_t>(parts.size());
  std::vector<Seen> seen(count);
  for (int64_t group = first_group; group < last_group; ++group) {
    look_at_group(vocabulary, rows, count, group, seen.data(), to);
  }
  for (int64_t row = 0; row < count; ++row) {
    parts[row].tops[part] = seen[row].top;
    parts[row].totals[part] = sum(seen[row].totals);
  }
}

VNNI Row put_together(const Parts& parts, float sum_log_probs) {
  const Floats tops = load(parts.tops);
  const float top = maximum(tops);
  const Floats totals = load(parts.totals) * exp2((tops - top) * kLog2E);
  return {top > kNone ? top : NAN, std::log(sum(totals)), sum_log_probs};
}

// Of the row's logits, in their place.
VNNI void log_softmax(const Row& row, float* logits, int64_t size) {
  for (int64_t i = 0; i < size; ++i) logits[i] = (logits[i] - row.top) - row.log_sum;
}

VNNI void multiply_group(const Vocabulary& vocabulary, const Rows& rows, int64_t row, int64_t group,
                         float* to) {
  int32_t products[kGroup];
  multiply<1>(vocabulary, rows, row, group, products);
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    store(to + i, logits(vocabulary, products + i, group * kGroup + i));
  }
}

// Logits of a sentence that are computed again.
class ComputedLogits : public Logits {
 public:
  // first: of the sentence's rows.
  ComputedLogits(const Vocabulary& vocabulary, const Rows& rows, int64_t first)
      : vocabulary_(vocabulary), rows_(rows), first_(first) {}

  const float* group(int64_t beam, int64_t group, float* room) const override {
    multiply_group(vocabulary_, rows_, first_ + beam, group, room);
    return room;
  }

 private:
  const Vocabulary& vocabulary_;
  const Rows& rows_;
  const int64_t first_;
};

// rows in uint8 [N,..,D], weights in uint8 [V/16,D/4,16,4], the rows' scale, the weights' [V], the
// rows' zero point, biases [V], sum_log_probs [B,K,1], how many candidates [1], L [1], and what only
// the function's own nodes read (the weight as it is stored, a shape)
// -> scores, token ids, parents [B,how many], log_probs [L,K,V]
void best_continuations(const Context& context) {
  const Tensor x = context.input(0), weights = context.input(1), scale = context.input(2);
  const Tensor scales = context.input(3), zero_point = context.input(4), bias = context.input(5);
  const Tensor sums = context.input(6), wanted = context.input(7), asked = context.input(8);
  expect(weights.rank == 4 && weights.dims[2] == kLanes && weights.dims[3] == 4,
         "weights in blocks of 16 entries and 4 places");
  const int64_t size = weights.dims[0] * kLanes, width = weights.dims[1] * 4;
  expect(scales.count() == size && bias.count() == size, "a scale and a bias for each entry");
  expect(scale.count() == 1 && zero_point.count() == 1 && *zero_point.as<uint8_t>() == 128,
         "one scale of the rows, and their zero point to be 128");
  expect(sums.rank == 3 && sums.dims[2] == 1 && asked.count() == 1,
         "sum_log_probs [B,K,1], one number of sentences");
  const int64_t sentences = sums.dims[0], beams = sums.dims[1], count = sentences * beams;
  expect(width > 0 && x.count() == count * width, "as many rows as sum_log_probs, and their width");
  const int64_t logged = *asked.as<int64_t>();
  expect(logged >= 0 && logged <= sentences, "log_probs of no more sentences than there are");
  const Chosen chosen(context, sentences, beams, size, wanted);
  float* log_probs = context.output(3, {logged, beams, size}).as<float>();
  if (count == 0) return;

  const Vocabulary vocabulary{weights.as<uint8_t>(), scales.as<float>(), bias.as<float>(),
                              *scale.as<float>()};
  const Rows rows(x, count, width);
  const int64_t groups = size / kGroup;
  const int64_t part_groups = std::max(kPartGroups, (groups + kParts - 1) / kParts);
  const int64_t part_count = (groups + part_groups - 1) / part_groups;
  const std::unique_ptr<float[]> maxima(new float[count * groups]);
  const Findings found{maxima.get(), log_probs, groups, log_probs ? logged * beams : 0};
  std::vector<Parts> parts(count);
  context.parallel(part_count, count * size * width / 16, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t end = std::min(groups, (part + 1) * part_groups);
      look_at_part(vocabulary, rows, part * part_groups, end, part, parts, found);
    }
  });
  context.parallel(sentences, 2000 * count + 8 * found.logged_rows * size,
                   [&](int64_t first, int64_t last) {
    std::vector<Row> its_rows(beams);
    for (int64_t sentence = first; sentence < last; ++sentence) {
      const int64_t first_row = sentence * beams;
      for (int64_t beam = 0; beam < beams; ++beam) {
        const int64_t row = first_row + beam;
        its_rows[beam] = put_together(parts[row], sums.as<float>()[row]);
        if (row < found.logged_rows) log_softmax(its_rows[beam], log_probs + row * size, size);
      }
      chosen.choose(sentence, its_rows, maxima.get() + first_row * groups,
                    ComputedLogits(vocabulary, rows, first_row));
    }
  });
}

}  // namespace

using ort::kFloat, ort::kInt32, ort::kInt64, ort::kInt8, ort::kUint8;
const Operator kBestContinuations("BestContinuations",
                                  {kUint8, kUint8, kFloat, kFloat, kUint8, kFloat, kFloat, kInt64,
                                   kInt64, kInt8, kInt64},
                                  10, {kFloat, kInt32, kInt32, kFloat}, best_continuations);

const Operator* best_continuations_here() {
  const bool can = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  return can ? &kBestContinuations : nullptr;
}

}  // namespace leanseq

#else

namespace leanseq {
const Operator* best_continuations_here() { return nullptr; }
}  // namespace leanseq

#endif
