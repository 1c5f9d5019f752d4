// Attention ("Attention Is All You Need", 3.2): scores of a query with every key, softmax, sum of the
// values so weighted; queries bear the scale already. SelfAttention and CrossAttention are a decoder
// step's, of one new token a row, EncoderAttention is over whole sources.
//
// Letters: B sentences, K beams, N = B*K rows, H heads, E = head size, M room of a cache, S source.

#include <algorithm>
#include <type_traits>
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

// What the queries of one head find, over `count` keys each; head says where these lie. kTogether of
// them go through it stage by stage: a query's stages wait for each other, but no query for another.
template <int kSize, typename Head>
KERNEL_PART void attend(const Head& head, int64_t queries, int64_t count, int64_t size,
                        const Result& to, float* scores, float* context) {
  const int64_t room = padded(count);
  float factors[Head::kTogether];
  for (int64_t first = 0; first < queries; first += Head::kTogether) {
    const int64_t together = std::min(Head::kTogether, queries - first);
    for (int64_t i = 0; i < together; ++i) {
      score<kSize>(scores + i * room, head.query(first + i), count, size, head.keys(first + i));
      head.mask(scores + i * room);
    }
    for (int64_t i = 0; i < together; ++i) factors[i] = softmax(scores + i * room, count);
    for (int64_t i = 0; i < together; ++i) {
      weighted_sum<kSize>(context, scores + i * room, count, factors[i], size,
                          head.values(first + i));
      put_all(to, head.result(first + i), context, size);
    }
  }
}

// Its room: their scores, one context.
struct Scratch {
  Scratch(int64_t together, int64_t count, int64_t size)
      : scores(together * padded(count)), context(size) {}

  std::vector<float> scores, context;
};

// A head size for which loops are unrolled; 0 is any other.
template <int kSize>
using Size = std::integral_constant<int, kSize>;

template <typename Work>
KERNEL_PART void with_size(int64_t size, Work work) {
  switch (size) {
    case 32: return work(Size<32>{});
    case 64: return work(Size<64>{});
    default: work(Size<0>{});
  }
}

struct SelfShape {
  int64_t beams, heads, size, room, position;  // K, H, E, M, how many tokens are cached
  int64_t row_stride;                          // of q, k and v, from a row to the next
};

struct SelfInputs {
  const float *q, *k, *v;  // [N,H,E], rows by the stride
  float *keys, *values;    // [N,H,M,E]
  const int32_t* rows;     // [N,M]: which of its sentence's K rows holds a position
};

// One head of a sentence whose rows begin with `first`: each beam looks at its past and at itself.
struct SelfHead {
  static constexpr int64_t kTogether = 1;  // more gain nothing here
  const SelfShape& shape;
  const SelfInputs& in;
  const int64_t size, first, head;

  KERNEL_PART int64_t own(int64_t beam) const {
    return (first + beam) * shape.row_stride + head * size;
  }
  KERNEL_PART int64_t cached(int64_t beam, int64_t t) const {
    return (((first + beam) * shape.heads + head) * shape.room + t) * size;
  }
  KERNEL_PART auto past(int64_t beam, const float* cache, const float* newest) const {
    const int32_t* rows = in.rows + (first + beam) * shape.room;
    const int64_t stride = size, of_row = shape.heads * shape.room * size, length = shape.position;
    const float* of_first = cache + cached(0, 0);
    const float* itself = newest + own(beam);
    return [=](int64_t t) __attribute__((always_inline)) {
      return t < length ? of_first + rows[t] * of_row + t * stride : itself;
    };
  }
  KERNEL_PART const float* query(int64_t beam) const { return in.q + own(beam); }
  KERNEL_PART auto keys(int64_t beam) const { return past(beam, in.keys, in.k); }
  KERNEL_PART auto values(int64_t beam) const { return past(beam, in.values, in.v); }
  KERNEL_PART void mask(float*) const {}
  KERNEL_PART int64_t result(int64_t beam) const {
    return ((first + beam) * shape.heads + head) * size;
  }
};

// Beams of a sentence share most of their past: head by head, it stays in the processor's cache.
KERNEL void attend_past(const SelfShape& shape, const SelfInputs& in, const Result& to,
                        int64_t first, int64_t last, Scratch scratch) {
  with_size(shape.size, [&](auto known) __attribute__((always_inline)) {
    const int64_t size = known ? known : shape.size;
    for (int64_t sentence = first; sentence < last; ++sentence) {
      for (int64_t i = 0; i < shape.heads; ++i) {
        const SelfHead head{shape, in, size, sentence * shape.beams, i};
        attend<known>(head, shape.beams, shape.position + 1, size, to, scratch.scores.data(),
                      scratch.context.data());
        for (int64_t beam = 0; beam < shape.beams; ++beam) {  // others read none of these yet
          const int64_t to_cache = head.cached(beam, shape.position);
          std::memcpy(in.keys + to_cache, in.k + head.own(beam), size * sizeof(float));
          std::memcpy(in.values + to_cache, in.v + head.own(beam), size * sizeof(float));
        }
      }
    }
  });
}

// q, k, v of N rows, a stride apart. caches: which input the first of the caches is. result: whose
// shape the context has.
void attend_to_past(const Context& context, const float* q, const float* k, const float* v,
                    int64_t row_stride, size_t caches, const Tensor& result) {
  const Tensor past_keys = context.input(caches), past_values = context.input(caches + 1);
  const Tensor position = context.input(caches + 2), rows = context.input(caches + 4);
  expect(past_keys.rank == 4 && past_values.has_shape_of(past_keys) && rows.rank == 3 &&
             position.count() == 1,
         "caches of four dimensions, cache_indirection of three, one position");
  const int64_t count = past_keys.dims[0];
  const SelfShape shape{rows.dims[1], past_keys.dims[1], past_keys.dims[3], past_keys.dims[2],
                        *position.as<int32_t>(), row_stride};
  const int64_t width = shape.heads * shape.size;
  expect(result.count() == count * width && (row_stride == width || row_stride == 3 * width),
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
  const SelfInputs in{q, k, v, context.output(0, past_keys).as<float>(),
                      context.output(1, past_values).as<float>(), beams};
  expect(count == 0 || (in.keys && in.values), "both caches as outputs");
  // The caller binds them to the memory of the past; whoever doesn't gets a copy.
  const size_t bytes = past_keys.count() * sizeof(float);
  if (bytes && in.keys != past_keys.data) std::memcpy(in.keys, past_keys.data, bytes);
  if (bytes && in.values != past_values.data) std::memcpy(in.values, past_values.data, bytes);
  const Result to{context.output(2, result).as<float>(),
                  quantization_of(context, caches + 5, 3, result)};
  context.parallel(rows.dims[0], 2 * count * width * (shape.position + 1),
                   [&](int64_t first, int64_t last) {
                     attend_past(shape, in, to, first, last,
                                 {SelfHead::kTogether, shape.position + 1, shape.size});
                   });
}

// q, k, v of N rows, past keys and values [N,H,M,E], position [1], beam_width [1],
// cache_indirection [B,K,M], scale, zero point -> the caches, context, context in uint8
void self_attention(const Context& context) {
  const Tensor q = context.input(0), k = context.input(1), v = context.input(2);
  const Tensor caches = context.input(3);
  expect(k.count() == v.count() && q.count() == v.count(), "as many queries, keys and values");
  expect(caches.rank == 4, "caches of four dimensions");
  // The result is of v's shape: what positions turn (q and k) comes in heads.
  attend_to_past(context, q.as<float>(), k.as<float>(), v.as<float>(),
                 caches.dims[1] * caches.dims[3], 3, v);
}

// The last dimension cut into three: the shape of one part.
Tensor third(const Tensor& packed) {
  expect(packed.rank > 0 && packed.dims[packed.rank - 1] % 3 == 0,
         "q, k and v behind each other in each row");
  Tensor part = packed;
  part.dims[part.rank - 1] /= 3;
  return part;
}

// The same with q, k and v of a row behind each other.
void packed_self_attention(const Context& context) {
  const Tensor packed = context.input(0), part = third(packed);
  const int64_t width = part.dims[part.rank - 1];
  const float* q = packed.as<float>();
  attend_to_past(context, q, q + width, q + 2 * width, 3 * width, 1, part);
}

// Queries of each sentence over all tokens of one source. Strides: from a token to the next, from a
// head to the next, from a sentence to the next.
struct SourceShape {
  int64_t queries, heads, size, length;  // of each sentence; E; S
  int64_t query_stride;
  int64_t token_stride, head_stride, sentence_stride;  // of keys and values
};

struct SourceInputs {
  const float* q;              // [B,queries,H,E]
  const float *keys, *values;  // both by the strides
  const int32_t* mask;         // [B,S]
};

// One head of a sentence.
struct SourceHead {
  static constexpr int64_t kTogether = 8;
  const SourceShape& shape;
  const SourceInputs& in;
  const int64_t size, sentence, head;

  KERNEL_PART auto tokens(const float* of_all) const {
    const float* first = of_all + sentence * shape.sentence_stride + head * shape.head_stride;
    const int64_t stride = shape.token_stride;
    return [=](int64_t s) __attribute__((always_inline)) { return first + s * stride; };
  }
  KERNEL_PART int64_t row(int64_t query) const { return sentence * shape.queries + query; }
  KERNEL_PART const float* query(int64_t i) const {
    return in.q + row(i) * shape.query_stride + head * size;
  }
  KERNEL_PART auto keys(int64_t) const { return tokens(in.keys); }
  KERNEL_PART auto values(int64_t) const { return tokens(in.values); }
  KERNEL_PART void mask(float* scores) const {
    const int32_t* is_token = in.mask + sentence * shape.length;
    for (int64_t s = 0; s < shape.length; ++s) scores[s] += is_token[s] ? 0.0f : -10000.0f;
  }
  KERNEL_PART int64_t result(int64_t i) const { return (row(i) * shape.heads + head) * size; }
};

KERNEL void attend_sources(const SourceShape& shape, const SourceInputs& in, const Result& to,
                           int64_t first, int64_t last, Scratch scratch) {
  with_size(shape.size, [&](auto known) __attribute__((always_inline)) {
    const int64_t size = known ? known : shape.size;
    for (int64_t sentence = first; sentence < last; ++sentence) {
      for (int64_t i = 0; i < shape.heads; ++i) {
        const SourceHead head{shape, in, size, sentence, i};
        attend<known>(head, shape.queries, shape.length, size, to, scratch.scores.data(),
                      scratch.context.data());
      }
    }
  });
}

void attend_all(const Context& context, const SourceShape& shape, const SourceInputs& in,
                const Result& to, int64_t sentences) {
  const int64_t each = 2 * shape.queries * shape.heads * shape.size * shape.length;
  context.parallel(sentences, sentences * each, [&](int64_t first, int64_t last) {
    attend_sources(shape, in, to, first, last, {SourceHead::kTogether, shape.length, shape.size});
  });
}

// queries of N rows, cross_k, cross_v [B,H,S,E], mask [B,S], scale, zero point, and what only the
// function's own nodes read: the queries' shape by sentence [3] -> context, context in uint8
void cross_attention(const Context& context) {
  const Tensor q = context.input(0), keys = context.input(1), values = context.input(2);
  const Tensor mask = context.input(3);
  expect(keys.rank == 4 && values.has_shape_of(keys) && mask.rank == 2,
         "keys and values of four dimensions, a mask of two");
  const int64_t sentences = keys.dims[0], heads = keys.dims[1], length = keys.dims[2];
  const int64_t size = keys.dims[3], width = heads * size;
  expect(mask.dims[0] == sentences && mask.dims[1] == length, "a mask of the keys' sentences");
  expect(width > 0 && q.count() % width == 0, "rows of queries");
  const int64_t count = q.count() / width;
  expect(sentences > 0 ? count % sentences == 0 : count == 0, "as many rows for each sentence");
  const Result to{context.output(0, q).as<float>(), quantization_of(context, 4, 1, q)};
  if (count == 0) return;
  expect(length > 0, "sources of at least one token");
  const SourceShape shape{count / sentences, heads, size, length,
                          width, size, length * size, width * length};
  attend_all(context, shape,
             {q.as<float>(), keys.as<float>(), values.as<float>(), mask.as<int32_t>()}, to,
             sentences);
}

// q, k, v of sources, rows a stride apart. mask: which input the mask is. result [B,S,H*E].
void attend_to_itself(const Context& context, const float* q, const float* k, const float* v,
                      int64_t row_stride, size_t mask_index, const Tensor& result) {
  const Tensor mask = context.input(mask_index);
  expect(result.rank == 3 && mask.rank == 2 && mask.dims[0] == result.dims[0] &&
             mask.dims[1] == result.dims[1],
         "queries, keys and values of three dimensions, and a mask of their tokens");
  const int64_t length = result.dims[1], width = result.dims[2], heads = context.num_heads;
  expect(heads > 0 && width % heads == 0, "heads of equal size");
  const SourceShape shape{length,     heads,      width / heads, length,
                          row_stride, row_stride, width / heads, length * row_stride};
  const Result to{context.output(0, result).as<float>(),
                  quantization_of(context, mask_index + 1, 1, result)};
  attend_all(context, shape, {q, k, v, mask.as<int32_t>()}, to, result.dims[0]);
}

// q, k, v [B,S,H*E], mask [B,S], scale, zero point -> context, context in uint8
void encoder_attention(const Context& context) {
  const Tensor q = context.input(0), k = context.input(1), v = context.input(2);
  expect(q.rank == 3 && k.has_shape_of(q) && v.has_shape_of(q), "q, k and v of one shape");
  attend_to_itself(context, q.as<float>(), k.as<float>(), v.as<float>(), q.dims[2], 3, q);
}

// The same with q, k and v of a token behind each other.
void packed_encoder_attention(const Context& context) {
  const Tensor packed = context.input(0), part = third(packed);
  const int64_t width = part.dims[part.rank - 1];
  const float* q = packed.as<float>();
  attend_to_itself(context, q, q + width, q + 2 * width, 3 * width, 1, part);
}

// x [B,S,H*E], a shape [.,.,H,E] -> [B,H,S,E]
void split_heads(const Context& context) {
  const Tensor x = context.input(0), shape = context.input(1);
  expect(x.rank == 3 && shape.count() == 4, "three dimensions that become four");
  const int64_t heads = shape.as<int64_t>()[2], size = shape.as<int64_t>()[3];
  const int64_t length = x.dims[1], width = x.dims[2];
  expect(heads > 0 && size > 0 && width % heads == 0 && width / heads == size,
         "heads that make up a row");
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
const Operator kPackedSelfAttention("PackedSelfAttention",
                                    {kFloat, kFloat, kFloat, kInt32, kInt32, kInt32}, 6,
                                    {kFloat, kFloat, kFloat}, packed_self_attention);
const Operator kPackedSelfAttentionQuantize("PackedSelfAttentionQuantize",
                                            {kFloat, kFloat, kFloat, kInt32, kInt32, kInt32,
                                             kFloat, kUint8},
                                            8, {kFloat, kFloat, kFloat, kUint8},
                                            packed_self_attention);
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
const Operator kPackedEncoderAttention("PackedEncoderAttention", {kFloat, kInt32}, 2, {kFloat},
                                       packed_encoder_attention);
const Operator kPackedEncoderAttentionQuantize("PackedEncoderAttentionQuantize",
                                               {kFloat, kInt32, kFloat, kUint8}, 4,
                                               {kFloat, kUint8}, packed_encoder_attention);
const Operator kSplitHeads("SplitHeads", {kFloat, kInt64}, 2, {kFloat}, split_heads);

}  // namespace leanseq
