// Attention ("Attention Is All You Need", 3.2): scores of a query with every key, softmax, sum of the
// values so weighted; queries bear the scale already. SelfAttention and CrossAttention are a decoder
// step's, of one new token a row, EncoderAttention is over whole sources.
//
// Letters: B sentences, K beams, N = B*K rows, H heads, E = head size, M room of a cache, S source.

#include <vector>

#include "operator.h"
#include "quantization.h"
#include "vectors.h"

namespace leanseq {
namespace {

template <int kSize>
KERNEL_PART Floats products(const float* a, const float* b, int64_t size) {
  Floats total{};
  by_lanes(kSize ? kSize : size, [&](int64_t i, auto count) __attribute__((always_inline)) {
    total += load(a + i, count) * load(b + i, count);
  });
  return total;
}

// scores[t] = query . key(t) for t < count, of `size` floats; kSize is its value where known, else 0.
template <int kSize, typename Key>
KERNEL_PART void score(float* scores, const float* query, int64_t count, int64_t size, Key key) {
  int64_t t = 0;
  for (; t + 4 <= count; t += 4) {
    const Floats4 four = sums(
        products<kSize>(query, key(t), size), products<kSize>(query, key(t + 1), size),
        products<kSize>(query, key(t + 2), size), products<kSize>(query, key(t + 3), size));
    std::memcpy(scores + t, &four, sizeof four);
  }
  for (; t < count; ++t) scores[t] = sum(products<kSize>(query, key(t), size));
}

// total [size] = factor * sum over t < count of weights[t] * row(t).
template <int kSize, typename Row>
KERNEL_PART void weighted_sum(float* total, const float* weights, int64_t count, float factor,
                              int64_t size, Row row) {
  if constexpr (kSize != 0) {  // stays in registers
    Floats sums[kSize / kLanes] = {};
    for (int64_t t = 0; t < count; ++t) {
      const float* x = row(t);
      for (int i = 0; i < kSize / kLanes; ++i) sums[i] += weights[t] * load(x + i * kLanes);
    }
    for (int i = 0; i < kSize / kLanes; ++i) store(total + i * kLanes, sums[i] * factor);
  } else {
    by_lanes(size, [&](int64_t i, auto part) __attribute__((always_inline)) {
      Floats sums{};
      for (int64_t t = 0; t < count; ++t) sums += weights[t] * load(row(t) + i, part);
      sums *= factor;
      std::memcpy(total + i, &sums, part * sizeof(float));
    });
  }
}

constexpr int64_t padded(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// scores [padded(count)] become the softmax's numerators, with zeros behind; 1 / their sum.
KERNEL_PART float softmax(float* scores, int64_t count) {
  const int64_t room = padded(count);
  for (int64_t i = count; i < room; ++i) scores[i] = -INFINITY;
  Floats top = load(scores);
  for (int64_t i = kLanes; i < room; i += kLanes) top = largest(top, load(scores + i));
  const float highest = maximum(top);
  Floats total{};
  for (int64_t i = 0; i < room; i += kLanes) {
    const Floats power = exp(load(scores + i) - highest);
    store(scores + i, power);
    total += power;
  }
  return 1.0f / sum(total);
}

// Where contexts go: as float, and in uint8 where the product behind reads that.
struct Result {
  float* context;
  Quantization quantized;
};

KERNEL_PART void put_all(const Result& to, int64_t at, const float* x, int64_t size) {
  by_lanes(size, [&](int64_t i, auto count) __attribute__((always_inline)) {
    put(to.context, at + i, load(x + i, count), count);
    put(to.quantized, at + i, load(x + i, count), count);
  });
}

struct SelfShape {
  int64_t beams, heads, size, room, position;  // K, H, E, M, how many tokens are cached
};

struct SelfInputs {
  const float *q, *k, *v;  // [N,H,E]
  float *keys, *values;    // [N,H,M,E]
  const int32_t* rows;     // [N,M]: which of its sentence's K rows holds a position
};

// Beams of a sentence share most of their past: head by head, it stays in the processor's cache.
template <int kSize>
KERNEL_PART void attend_sentence(const SelfShape& shape, const SelfInputs& in, const Result& to,
                                 int64_t sentence, float* scores, float* context) {
  const int64_t size = kSize ? kSize : shape.size, length = shape.position;
  const int64_t of_head = shape.room * size, of_row = shape.heads * of_head;
  const int64_t first = sentence * shape.beams;
  for (int64_t head = 0; head < shape.heads; ++head) {
    for (int64_t row = first; row < first + shape.beams; ++row) {
      const int64_t at = (row * shape.heads + head) * size;
      const int32_t* rows = in.rows + row * shape.room;
      const auto cached = [&](int64_t t) __attribute__((always_inline)) {
        return (first + rows[t]) * of_row + head * of_head + t * size;
      };
      score<kSize>(scores, in.q + at, length + 1, size,
                   [&](int64_t t) __attribute__((always_inline)) {
                     return t < length ? in.keys + cached(t) : in.k + at;
                   });
      const float factor = softmax(scores, length + 1);
      weighted_sum<kSize>(context, scores, length + 1, factor, size,
                          [&](int64_t t) __attribute__((always_inline)) {
                            return t < length ? in.values + cached(t) : in.v + at;
                          });
      put_all(to, at, context, size);
      // Others read only positions before this one.
      const int64_t own = row * of_row + head * of_head + length * size;
      std::memcpy(in.keys + own, in.k + at, size * sizeof(float));
      std::memcpy(in.values + own, in.v + at, size * sizeof(float));
    }
  }
}

KERNEL void attend_past(const SelfShape& shape, const SelfInputs& in, const Result& to,
                        int64_t first, int64_t last, float* scores, float* context) {
  for (int64_t sentence = first; sentence < last; ++sentence) {
    switch (shape.size) {
      case 32: attend_sentence<32>(shape, in, to, sentence, scores, context); break;
      case 64: attend_sentence<64>(shape, in, to, sentence, scores, context); break;
      default: attend_sentence<0>(shape, in, to, sentence, scores, context);
    }
  }
}

// q, k, v of N rows, past keys and values [N,H,M,E], position [1], beam_width [1],
// cache_indirection [B,K,M], scale, zero point -> the caches, context, context in uint8
void self_attention(const Context& context) {
  const Tensor q = context.input(0), k = context.input(1), v = context.input(2);
  const Tensor past_keys = context.input(3), past_values = context.input(4);
  const Tensor position = context.input(5), rows = context.input(7);
  expect(past_keys.rank == 4 && past_values.dims == past_keys.dims && rows.rank == 3 &&
             position.count() == 1,
         "caches of four dimensions, cache_indirection of three, one position");
  const int64_t count = past_keys.dims[0];
  const SelfShape shape{rows.dims[1], past_keys.dims[1], past_keys.dims[3], past_keys.dims[2],
                        *position.as<int32_t>()};
  const int64_t width = shape.heads * shape.size;
  expect(q.count() == count * width && k.count() == q.count() && v.count() == q.count(),
         "queries, keys and values of the caches' rows");
  expect(rows.dims[0] * rows.dims[1] == count && rows.dims[2] == shape.room,
         "cache_indirection of the caches' rows and room");
  expect(shape.position >= 0 && shape.position < shape.room, "room for one more token");
  const int32_t* beams = rows.as<int32_t>();
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t t = 0; t < shape.position; ++t) {
      const int32_t beam = beams[row * shape.room + t];
      expect(beam >= 0 && beam < shape.beams, "cache_indirection within the beams");
    }
  }
  const SelfInputs in{q.as<float>(), k.as<float>(), v.as<float>(),
                      context.output(0, past_keys).as<float>(),
                      context.output(1, past_values).as<float>(), beams};
  // The caller binds them to the memory of the past; whoever doesn't gets a copy.
  const size_t bytes = past_keys.count() * sizeof(float);
  if (in.keys != past_keys.data) std::memcpy(in.keys, past_keys.data, bytes);
  if (in.values != past_values.data) std::memcpy(in.values, past_values.data, bytes);
  // Of v's shape: what positions turn (q and k) comes in heads.
  const Result to{context.output(2, v).as<float>(), quantization_of(context, 8, 3, v)};
  context.parallel(rows.dims[0], 2 * count * width * (shape.position + 1),
                   [&](int64_t first, int64_t last) {
                     std::vector<float> scores(padded(shape.position + 1)), head(shape.size);
                     attend_past(shape, in, to, first, last, scores.data(), head.data());
                   });
}

// Queries of each sentence over all tokens of one source. Strides: from a token to the next, from a
// head to the next, from a sentence to the next.
struct SourceShape {
  int64_t queries, heads, size, length;  // of each sentence; E; S
  int64_t token_stride, head_stride, sentence_stride;
};

struct SourceInputs {
  const float* q;              // [B,queries,H,E]
  const float *keys, *values;  // by the strides
  const int32_t* mask;         // [B,S]
};

template <int kSize>
KERNEL_PART void attend_source(const SourceShape& shape, const SourceInputs& in, const Result& to,
                               int64_t sentence, float* scores, float* context) {
  const int64_t size = kSize ? kSize : shape.size;
  const int32_t* mask = in.mask + sentence * shape.length;
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t first = sentence * shape.sentence_stride + head * shape.head_stride;
    for (int64_t query = 0; query < shape.queries; ++query) {
      const int64_t at = ((sentence * shape.queries + query) * shape.heads + head) * size;
      score<kSize>(scores, in.q + at, shape.length, size,
                   [&](int64_t s) __attribute__((always_inline)) {
                     return in.keys + first + s * shape.token_stride;
                   });
      for (int64_t s = 0; s < shape.length; ++s) scores[s] += mask[s] ? 0.0f : -10000.0f;
      const float factor = softmax(scores, shape.length);
      weighted_sum<kSize>(context, scores, shape.length, factor, size,
                          [&](int64_t s) __attribute__((always_inline)) {
                            return in.values + first + s * shape.token_stride;
                          });
      put_all(to, at, context, size);
    }
  }
}

KERNEL void attend_sources(const SourceShape& shape, const SourceInputs& in, const Result& to,
                           int64_t first, int64_t last, float* scores, float* context) {
  for (int64_t sentence = first; sentence < last; ++sentence) {
    switch (shape.size) {
      case 32: attend_source<32>(shape, in, to, sentence, scores, context); break;
      case 64: attend_source<64>(shape, in, to, sentence, scores, context); break;
      default: attend_source<0>(shape, in, to, sentence, scores, context);
    }
  }
}

void attend_all(const Context& context, const SourceShape& shape, const SourceInputs& in,
                const Result& to, int64_t sentences) {
  const int64_t each = 2 * shape.queries * shape.heads * shape.size * shape.length;
  context.parallel(sentences, sentences * each, [&](int64_t first, int64_t last) {
    std::vector<float> scores(padded(shape.length)), head(shape.size);
    attend_sources(shape, in, to, first, last, scores.data(), head.data());
  });
}

// queries of N rows, cross_k, cross_v [B,H,S,E], mask [B,S], scale, zero point, and what only the
// function's own nodes read: the queries' shape by sentence [3] -> context, context in uint8
void cross_attention(const Context& context) {
  const Tensor q = context.input(0), keys = context.input(1), values = context.input(2);
  const Tensor mask = context.input(3);
  expect(keys.rank == 4 && values.dims == keys.dims && mask.rank == 2,
         "keys and values of four dimensions, a mask of two");
  const int64_t sentences = keys.dims[0], heads = keys.dims[1], length = keys.dims[2];
  const int64_t size = keys.dims[3], width = heads * size;
  expect(mask.dims[0] == sentences && mask.dims[1] == length, "a mask of the keys' sentences");
  expect(width > 0 && q.count() % width == 0, "rows of queries");
  const int64_t count = q.count() / width;
  expect(sentences > 0 ? count % sentences == 0 : count == 0, "as many rows for each sentence");
  if (count == 0) return;
  const SourceShape shape{count / sentences, heads, size, length,
                          size, length * size, width * length};
  const Result to{context.output(0, q).as<float>(), quantization_of(context, 4, 1, q)};
  attend_all(context, shape,
             {q.as<float>(), keys.as<float>(), values.as<float>(), mask.as<int32_t>()}, to,
             sentences);
}

// q, k, v [B,S,H*E], mask [B,S], scale, zero point -> context, context in uint8
void encoder_attention(const Context& context) {
  const Tensor q = context.input(0), k = context.input(1), v = context.input(2);
  const Tensor mask = context.input(3);
  expect(q.rank == 3 && k.dims == q.dims && v.dims == q.dims && mask.rank == 2 &&
             mask.dims[0] == q.dims[0] && mask.dims[1] == q.dims[1],
         "queries, keys and values of one shape, and a mask of their tokens");
  const int64_t length = q.dims[1], width = q.dims[2], heads = context.num_heads;
  expect(heads > 0 && width % heads == 0, "heads of equal size");
  const SourceShape shape{length, heads, width / heads, length,
                          width, width / heads, length * width};
  const Result to{context.output(0, q).as<float>(), quantization_of(context, 4, 1, q)};
  attend_all(context, shape, {q.as<float>(), k.as<float>(), v.as<float>(), mask.as<int32_t>()}, to,
             q.dims[0]);
}

// x [B,S,H*E], a shape [.,.,H,E] -> [B,H,S,E]
void split_heads(const Context& context) {
  const Tensor x = context.input(0), shape = context.input(1);
  expect(x.rank == 3 && shape.count() == 4, "three dimensions that become four");
  const int64_t heads = shape.as<int64_t>()[2], size = shape.as<int64_t>()[3];
  const int64_t length = x.dims[1], width = x.dims[2];
  expect(heads > 0 && size > 0 && heads * size == width, "heads that make up a row");
  const float* from = x.as<float>();
  float* to = context.output(0, {x.dims[0], heads, length, size}).as<float>();
  if (!to) return;
  for (int64_t sentence = 0; sentence < x.dims[0]; ++sentence) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t s = 0; s < length; ++s, to += size) {
        std::memcpy(to, from + (sentence * length + s) * width + head * size, size * sizeof(float));
      }
    }
  }
}

}  // namespace

using ort::kFloat, ort::kInt32, ort::kInt64, ort::kUint8;
const Operator kSelfAttention("SelfAttention",
                              {kFloat, kFloat, kFloat, kFloat, kFloat, kInt32, kInt32, kInt32}, 8,
                              {kFloat, kFloat, kFloat}, self_attention);
const Operator kSelfAttentionQuantize("SelfAttentionQuantize",
                                      {kFloat, kFloat, kFloat, kFloat, kFloat, kInt32, kInt32,
                                       kInt32, kFloat, kUint8},
                                      10, {kFloat, kFloat, kFloat, kUint8}, self_attention);
const Operator kCrossAttention("CrossAttention", {kFloat, kFloat, kFloat, kInt32, kInt64}, 4,
                               {kFloat}, cross_attention);
const Operator kCrossAttentionQuantize("CrossAttentionQuantize",
                                       {kFloat, kFloat, kFloat, kInt32, kFloat, kUint8, kInt64}, 6,
                                       {kFloat, kUint8}, cross_attention);
const Operator kEncoderAttention("EncoderAttention", {kFloat, kFloat, kFloat, kInt32}, 4, {kFloat},
                                 encoder_attention);
const Operator kEncoderAttentionQuantize("EncoderAttentionQuantize",
                                         {kFloat, kFloat, kFloat, kInt32, kFloat, kUint8}, 6,
                                         {kFloat, kUint8}, encoder_attention);
const Operator kSplitHeads("SplitHeads", {kFloat, kInt64}, 2, {kFloat}, split_heads);

}  // namespace leanseq
