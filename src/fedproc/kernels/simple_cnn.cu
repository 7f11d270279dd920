// The simple CNN for L clients side by side, each with weights of its own: two convolutions with relu and 2x2 pooling, the
// linear layers, the classifier; forwards in two kernels, backwards in six. simple_cnn.py calls them, and compiles this
// with a network's sizes: C channels, SIDE pixels, CLASSES; PRODUCTS (three for all bits of float32); EVEN (whether weights
// begin at even places); and AT_..., where each layer's weights lie among a lane's parameters, the bias behind them.
//
// All products are formed by tensor cores (mma m16n8k8, tf32 in, float32 out), each operand going straight from shared or
// global memory into the registers that the instruction wants: thread `lane` of a warp has row g = lane / 4 and column
// t = lane % 4 of a tile. Which index of a sum is called which column is free, as long as both operands agree.
//
// A pooling window is a row of a convolution's product: its patch of 6 x 6 pixels has what the four places of the window
// need. Backwards, the gradient of a window goes to the place that won. What a window gave, and its gradient, have that
// place in their lowest three bits (4: relu cut all off), which tensor cores do not see: of tf32 they take the upper 19.

#ifndef ON_CPU  // tests run this without a GPU as well
extern __shared__ __align__(16) float shared_memory[];
#endif

__host__ __device__ constexpr int up(int n, int step) { return (n + step - 1) / step * step; }
__host__ __device__ constexpr int most(int a, int b) { return a > b ? a : b; }
// the least stride of at least n that leaves `rest` over 32 (or over `by`), which keeps a warp's threads on banks apart
__host__ __device__ constexpr int stride(int n, int rest, int by = 32) { return n + ((rest - n) % by + by) % by; }

constexpr int THREADS = 256, WARPS = THREADS / 32, HEAD_THREADS = 512, HEAD_WARPS = HEAD_THREADS / 32;
constexpr int N1 = 6, N2 = 16, U = 6;                    // channels of the convolutions, side of a window's patch
constexpr int P1 = (SIDE - 4) / 2, P2 = (P1 - 4) / 2;    // windows along a side
constexpr int W1 = P1 * P1, W2 = P2 * P2;                // windows
constexpr int F0 = N2 * W2, F1 = 120, F2 = 84, F3 = 84, F4 = 256;  // features between the linear layers
constexpr int PATCH = N1 * U * U;                        // of the second convolution
constexpr int WEIGHTS1 = N1 * C * 25, WEIGHTS2 = N2 * N1 * 25;
constexpr int G = 2;                                     // images that a block has in shared memory at a time

// An image in shared memory: rows of all channels in turn, (y * C + c) * ROW + x, so that the patch of a window is
// J = 6 C rows one after the other.
constexpr int ROW = stride(SIDE, 8), J = U * C, J4 = (J + 3) / 4;
constexpr int IMAGE = most(SIDE * C, 2 * (P1 - 1) * C + 4 * J4) * ROW, IMAGES = G * IMAGE;
constexpr int STEPS1 = J4 * 3;
// What the first convolution gives: channel * PLANE + y * LINE + x, in global memory as well.
constexpr int LINE = stride(P1, P2 % 16, 16), PLANE = stride(P1 * LINE, 9), HIDDEN = up(N1 * PLANE, 4);
// Its gradient: channel * WINDOWS1 + window.
constexpr int WINDOWS1 = up(W1, 8), SLOPES1 = N1 * WINDOWS1;

typedef unsigned int word;

#ifndef ON_CPU
__device__ __forceinline__ float rounded(float x) {
  word bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

__device__ __forceinline__ void tensor_cores(float (&d)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Copies to shared memory that go on by themselves, until `copied`; zeros where there is nothing.
template <int BYTES>
__device__ __forceinline__ void copy(float* to, const float* from, bool there = true) {
  const word place = (word)__cvta_generic_to_shared(to), bytes = there ? BYTES : 0;
  if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif

__device__ __forceinline__ float packed(float x, int place) {
  return __uint_as_float((__float_as_uint(x) & ~7u) | (word)place);
}

__device__ __forceinline__ int place_of(float x) { return __float_as_uint(x) & 7u; }

__device__ __forceinline__ float without_place(float x) { return __uint_as_float(__float_as_uint(x) & ~7u); }

// An operand that has a place in its lowest bits.
__device__ __forceinline__ float operand(float x) { return PRODUCTS == 1 ? x : without_place(x); }

__device__ __forceinline__ float if_won(float slope, int place) { return place_of(slope) == place ? operand(slope) : 0.f; }

__device__ __forceinline__ float of_winner(float slope) { return place_of(slope) < 4 ? without_place(slope) : 0.f; }

__device__ __forceinline__ void product(float (&d)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  if (PRODUCTS == 1) {
    tensor_cores(d, a0, a1, a2, a3, b0, b1);
  } else {
    float A0 = rounded(a0), A1 = rounded(a1), A2 = rounded(a2), A3 = rounded(a3), B0 = rounded(b0), B1 = rounded(b1);
    tensor_cores(d, rounded(a0 - A0), rounded(a1 - A1), rounded(a2 - A2), rounded(a3 - A3), B0, B1);
    tensor_cores(d, A0, A1, A2, A3, rounded(b0 - B0), rounded(b1 - B1));
    tensor_cores(d, A0, A1, A2, A3, B0, B1);
  }
}

__device__ __forceinline__ float2 pair(const float* p) { return *reinterpret_cast<const float2*>(p); }

// Two neighbours of a lane's parameters, which begin at an even place only where EVEN.
__device__ __forceinline__ float2 neighbours(const float* p) { return EVEN ? pair(p) : make_float2(p[0], p[1]); }

// relu of the largest of a window's four places, with the place.
__device__ __forceinline__ float largest(float q0, float q1, float q2, float q3, float bias) {
  float best = q0, total = q0 + q1 + q2 + q3;
  int place = 0;
  if (q1 > best) best = q1, place = 1;
  if (q2 > best) best = q2, place = 2;
  if (q3 > best) best = q3, place = 3;
  if (total != total) best = total;  // a maximum may ignore nan
  best += bias;
  if (!(best > 0.f)) place = 4;
  return packed(best < 0.f ? 0.f : best, place);
}

__device__ __forceinline__ void copy_image(float* to, const float* from) {
  constexpr int WIDTH = SIDE % 4 == 0 ? 4 : 1;  // of what is copied at once
  for (int i = threadIdx.x; i < C * SIDE * SIDE / WIDTH; i += THREADS) {
    const int x = i % (SIDE / WIDTH) * WIDTH, y = i / (SIDE / WIDTH) % SIDE, c = i / (SIDE / WIDTH) / SIDE;
    copy<4 * WIDTH>(to + (y * C + c) * ROW + x, from + i * WIDTH);
  }
}

__device__ __forceinline__ void fill(float* to, int count, float value) {
  for (int i = threadIdx.x; i < count; i += THREADS) to[i] = value;
}

// A lane's images from `begin` on, as many as a block has at a time; zeros where there are none.
__device__ __forceinline__ void copy_images(float* to, const float* x, int begin, int end) {
#pragma unroll
  for (int s = 0; s < G; s++) {
    if (begin + s < end) copy_image(to + s * IMAGE, x + (long long)(begin + s) * C * SIDE * SIDE);
    else fill(to + s * IMAGE, SIDE * C * ROW, 0.f);
  }
}

// The rows below the images, which a product meets with weights of zero.
__device__ __forceinline__ void clear_below(float* images) {
  for (int s = 0; s < 2 * G; s++) fill(images + s * IMAGE + SIDE * C * ROW, IMAGE - SIDE * C * ROW, 0.f);
}

__device__ __forceinline__ void copy_straight(float* to, const float* from, int count) {
  for (int i = 4 * threadIdx.x; i < count; i += 4 * THREADS) copy<16>(to + i, from + i);
}

// Both convolutions of `per` images of a lane. What the first gave is stored where there is a place.
constexpr int PARTS1 = STEPS1 * 3 * 64, RAW1 = up(WEIGHTS1, 4), RAW2 = up(WEIGHTS2 + 32, 4);
constexpr int CONV_FORWARD_SHARED = PARTS1 + RAW1 + RAW2 + 2 * IMAGES + G * HIDDEN;

extern "C" __global__ void __launch_bounds__(THREADS, 2)
conv_forward(const float* x, long long x_lane, const float* params, long long lane_params, float* y1, float* y2, int B,
             int per) {
  float* parts1 = shared_memory;
  float* raw1 = parts1 + PARTS1;
  float* raw2 = raw1 + RAW1;
  float* images = raw2 + RAW2;
  float* hidden = images + 2 * IMAGES;
  const int lane = blockIdx.y, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int first = blockIdx.x * per, end = min(B, first + per);
  const float* own = params + lane * lane_params;
  x += lane * x_lane;

  auto fetch = [&](int begin) { copy_images(images + (begin - first) / G % 2 * IMAGES, x, begin, end); };
  for (int i = threadIdx.x; i < WEIGHTS1; i += THREADS) copy<4>(raw1 + i, own + AT_CONV1 + i);
  for (int i = threadIdx.x; i < WEIGHTS2; i += THREADS) copy<4>(raw2 + i, own + AT_CONV2 + i);
  fill(raw2 + WEIGHTS2, 32, 0.f);
  clear_below(images);
  fetch(first);
  const int mine = t / 2 * 3 + t % 2, both = t / 2 * 3 + 2;  // output channels of the first
  const float bias = own[AT_CONV1 + WEIGHTS1 + mine], bias_both = own[AT_CONV1 + WEIGHTS1 + both];
  copied();
  __syncthreads();
  // the first weights as the product's instruction wants them: [step][tile of columns][thread][2]
#pragma unroll 4
  for (int i = threadIdx.x; i < PARTS1; i += THREADS) {
    const int e = i % 2, to = i / 2 % 32, tile = i / 64 % 3, step = i / 192;
    const int j = step / 3 * 4 + to % 4, column = to / 4, v = step % 3 * 2 + e, u = j / C, c = j % C;
    const int half = column / 2;  // the thread that has this column of the result, and its neighbour column
    const int n = half / 2 * 3 + (tile < 2 ? half % 2 : 2);
    const int q = tile < 2 ? tile * 2 + column % 2 : half % 2 * 2 + column % 2, row = u - q / 2, at = v - q % 2;
    const bool there = j < J && row >= 0 && row < 5 && at >= 0 && at < 5;
    parts1[i] = there ? raw1[((n * C + c) * 5 + row) * 5 + at] : 0.f;
  }
  const float* low2 = raw2 + (g * N1 + t) * 25;  // of the second weights: input channels t and t + 4, output channel g
  const float* high2 = t + 4 < N1 ? low2 + 100 : raw2 + WEIGHTS2;
  const int next2 = 8 * N1 * 25, next_high2 = t + 4 < N1 ? next2 : 0;

  for (int begin = first; begin < end; begin += G) {
    copied();
    __syncthreads();
    if (begin + G < end) fetch(begin + G);
    const float* image = images + (begin - first) / G % 2 * IMAGES;
    {
      float b[STEPS1][3][2];
#pragma unroll
      for (int step = 0; step < STEPS1; step++)
#pragma unroll
        for (int tile = 0; tile < 3; tile++) {
          float2 two = pair(parts1 + ((step * 3 + tile) * 32 + threadIdx.x % 32) * 2);
          b[step][tile][0] = two.x, b[step][tile][1] = two.y;
        }
#pragma unroll 1
      for (int tile = warp; tile < (G * W1 + 15) / 16; tile += WARPS) {
        const float* from[2];
        int to[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
          int m = min(tile * 16 + g + 8 * h, G * W1 - 1), s = m / W1, p = m % W1, py = p / P1, px = p % P1;
          from[h] = image + s * IMAGE + (2 * py * C + t) * ROW + 2 * px;
          to[h] = s * HIDDEN + py * LINE + px;
        }
        float d[3][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS1; step++) {
          float2 v0 = pair(from[0] + step / 3 * 4 * ROW + step % 3 * 2);
          float2 v1 = pair(from[1] + step / 3 * 4 * ROW + step % 3 * 2);
#pragma unroll
          for (int n = 0; n < 3; n++) product(d[n], v0.x, v1.x, v0.y, v1.y, b[step][n][0], b[step][n][1]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
          hidden[to[h] + mine * PLANE] =
              largest(d[0][2 * h], d[0][2 * h + 1], d[1][2 * h], d[1][2 * h + 1], bias);
        // the third channel of a pair of threads: each has two places of both rows, and finishes one row
        const bool odd = t % 2;
        float r0 = __shfl_xor_sync(~0u, odd ? d[2][0] : d[2][2], 1), r1 = __shfl_xor_sync(~0u, odd ? d[2][1] : d[2][3], 1);
        hidden[(odd ? to[1] : to[0]) + both * PLANE] = odd ? largest(r0, r1, d[2][2], d[2][3], bias_both)
                                                           : largest(d[2][0], d[2][1], r0, r1, bias_both);
      }
    }
    __syncthreads();
    if (y1) {
      float4* to = reinterpret_cast<float4*>(y1 + ((long long)lane * B + begin) * HIDDEN);
      for (int i = threadIdx.x; i < min(G, end - begin) * HIDDEN / 4; i += THREADS)
        to[i] = reinterpret_cast<const float4*>(hidden)[i];
    }
    for (int group = warp; group < (G * W2 + 7) / 8; group += WARPS) {
      const int m = group * 8 + g, s = min(m, G * W2 - 1) / W2, w = min(m, G * W2 - 1) % W2;
      const float* corner = hidden + s * HIDDEN + w / P2 * 2 * LINE + w % P2 * 2;
      const float* low = corner + t * PLANE;
      const float* high = corner + min(t + 4, N1 - 1) * PLANE;
      float upper[2][4] = {}, lower[2][4] = {}, r[2][2][6];  // [row of the patch][channels][column]
#pragma unroll
      for (int v = 0; v < 6; v++) r[0][0][v] = operand(low[v]), r[0][1][v] = operand(high[v]);
#pragma unroll
      for (int u = 0; u < 5; u++) {
        const int now = u % 2, next = 1 - now;
#pragma unroll
        for (int v = 0; v < 6; v++)
          r[next][0][v] = operand(low[(u + 1) * LINE + v]), r[next][1][v] = operand(high[(u + 1) * LINE + v]);
#pragma unroll
        for (int v = 0; v < 5; v++)
#pragma unroll
          for (int n = 0; n < 2; n++) {
            const float b0 = low2[n * next2 + u * 5 + v], b1 = high2[n * next_high2 + u * 5 + v];
            product(upper[n], r[now][0][v], r[now][0][v + 1], r[now][1][v], r[now][1][v + 1], b0, b1);
            product(lower[n], r[next][0][v], r[next][0][v + 1], r[next][1][v], r[next][1][v + 1], b0, b1);
          }
      }
      if (m < G * W2 && begin + s < end) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int tile = i / 2, e = i % 2, n = tile * 8 + 2 * t + e;
          y2[((long long)lane * B + begin + s) * F0 + n * W2 + w] =
              largest(upper[tile][e], upper[tile][2 + e], lower[tile][e], lower[tile][2 + e], own[AT_CONV2 + WEIGHTS2 + n]);
        }
      }
    }
  }
}

// The columns of linear layers go to a block's warps in tiles of eight. What a tile needs of global memory is asked for in
// parts, the first before the block waits for its input.
template <int IN>
struct Parts {
  static constexpr int STEPS = (IN + 7) / 8, COUNT = (STEPS + 16) / 17, SIZE = (STEPS + COUNT - 1) / COUNT;
};

// The product of a tile of a layer's weights, which `ask(tile, part, b)` gets, with 16 MT samples in shared memory.
template <int MT, int IN, class Ask>
__device__ __forceinline__ void times(float (&d)[MT][4], const float* in, int in_row, int tile, float2* b, Ask ask) {
  typedef Parts<IN> P;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  float more[MT][4] = {};  // a second sum, so that a product does not wait for the one before
#pragma unroll
  for (int part = 0; part < P::COUNT; part++) {
    if (part) ask(tile, part, b);
#pragma unroll
    for (int step = 0; step < P::SIZE && part * P::SIZE + step < P::STEPS; step++) {
      const int k = (part * P::SIZE + step) * 8 + 2 * t;
#pragma unroll
      for (int m = 0; m < MT; m++) {
        const float2 v0 = pair(in + (m * 16 + g) * in_row + k), v1 = pair(in + (m * 16 + g + 8) * in_row + k);
        product(step % 2 ? more[m] : d[m], v0.x, v1.x, v0.y, v1.y, b[step].x, b[step].y);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4 * MT; i++) d[i / 4][i % 4] += more[i / 4][i % 4];
}

// One linear layer: out = in w^T + bias, with relu where asked; also to global memory where there is a place. Columns up to
// a multiple of eight are zero.
template <int MT, int IN, int OUT>
__device__ __forceinline__ void linear(const float* in, int in_row, const float* w, const float* bias, bool relu, float* out,
                                       int out_row, float* to, int rows) {
  typedef Parts<IN> P;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  auto ask = [&](int tile, int part, float2* b) {
    const float* row = w + (tile * 8 + g) * IN + 2 * t;
#pragma unroll
    for (int step = 0; step < P::SIZE; step++) {
      const int k = (part * P::SIZE + step) * 8;
      b[step] = tile * 8 + g < OUT && k + 2 * t < IN ? neighbours(row + k) : make_float2(0.f, 0.f);
    }
  };
  float2 b[P::SIZE];
  ask(warp, 0, b);
  __syncthreads();
#pragma unroll 1
  for (int tile = warp; tile < (OUT + 7) / 8; tile += HEAD_WARPS) {
    const int column = tile * 8 + 2 * t;
    const float bias0 = column < OUT ? bias[column] : 0.f, bias1 = column + 1 < OUT ? bias[column + 1] : 0.f;
    float d[MT][4] = {};
    if (tile != warp) ask(tile, 0, b);
    times<MT, IN>(d, in, in_row, tile, b, ask);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int r = m * 16 + g + 8 * h;
        float y0 = d[m][2 * h] + bias0, y1 = d[m][2 * h + 1] + bias1;
        if (relu) y0 = y0 < 0.f ? 0.f : y0, y1 = y1 < 0.f ? 0.f : y1;
        if (out) *reinterpret_cast<float2*>(out + r * out_row + column) = make_float2(y0, y1);
        if (to && r < rows) {
          if (OUT % 2 == 0) {
            if (column < OUT) *reinterpret_cast<float2*>(to + (long long)r * OUT + column) = make_float2(y0, y1);
          } else {
            if (column < OUT) to[(long long)r * OUT + column] = y0;
            if (column + 1 < OUT) to[(long long)r * OUT + column + 1] = y1;
          }
        }
      }
  }
}

constexpr int WIDE = stride(most(F0, F4), 8), BROAD = stride(F4, 8), NARROW = stride(F1, 8);
constexpr int COLUMNS = up(CLASSES, 8), FEW = stride(COLUMNS, 24);
constexpr int HEAD_FORWARD_SHARED = 16 * (WIDE + NARROW), HEAD_BACKWARD_SHARED = 16 * (BROAD + NARROW + FEW);  // times MT

// The linear layers and the classifier. Each layer's output is stored where there is a place; z and logits always.
template <int MT>
__device__ __forceinline__ void head_forward_(const float* y2, const float* params, long long lane_params, float* a1,
                                              float* a2, float* a3, float* z, float* logits, int B) {
  float* wide = shared_memory;
  float* narrow = wide + 16 * MT * WIDE;
  const float* own = params + blockIdx.y * lane_params;
  const int first = blockIdx.x * 16 * MT, rows = min(16 * MT, B - first);
  const long long at = (long long)blockIdx.y * B + first;
#pragma unroll 4
  for (int i = threadIdx.x; i < 16 * MT * F0 / 4; i += HEAD_THREADS) {
    const int r = i / (F0 / 4), k = i % (F0 / 4) * 4;
    float4 v = r < rows ? *reinterpret_cast<const float4*>(y2 + (at + r) * F0 + k) : make_float4(0.f, 0.f, 0.f, 0.f);
    *reinterpret_cast<float4*>(wide + r * WIDE + k) =
        make_float4(operand(v.x), operand(v.y), operand(v.z), operand(v.w));
  }
  linear<MT, F0, F1>(wide, WIDE, own + AT_FC1, own + AT_FC1 + F0 * F1, true, narrow, NARROW, a1 ? a1 + at * F1 : 0, rows);
  linear<MT, F1, F2>(narrow, NARROW, own + AT_FC2, own + AT_FC2 + F1 * F2, true, wide, WIDE, a2 ? a2 + at * F2 : 0, rows);
  linear<MT, F2, F3>(wide, WIDE, own + AT_HEAD1, own + AT_HEAD1 + F2 * F3, true, narrow, NARROW, a3 ? a3 + at * F3 : 0,
                     rows);
  linear<MT, F3, F4>(narrow, NARROW, own + AT_HEAD2, own + AT_HEAD2 + F3 * F4, false, wide, WIDE, z + at * F4, rows);
  linear<MT, F4, CLASSES>(wide, WIDE, own + AT_CLASSIFIER, own + AT_CLASSIFIER + F4 * CLASSES, false, 0, 0,
                          logits + at * CLASSES, rows);
}

enum Passes { ALL, POSITIVE, WINNERS };

// The gradient of a linear layer's input, (in w) + plus where there is such: all of it, what `given` is positive for, or
// with the places that won in `given`.
template <int MT, int IN, int OUT, Passes PASSES>
__device__ __forceinline__ void linear_back(const float* in, int in_row, const float* w, const float* plus,
                                            const float* given, float* out, int out_row, float* to, int rows) {
  typedef Parts<IN> P;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  auto ask = [&](int tile, int part, float2* b) {
    const float* column = w + 2 * t * OUT + tile * 8 + g;
    const bool there = tile * 8 + g < OUT;
#pragma unroll
    for (int step = 0; step < P::SIZE; step++) {
      const int k = (part * P::SIZE + step) * 8;
      b[step].x = there && k + 2 * t < IN ? column[k * OUT] : 0.f;
      b[step].y = there && k + 2 * t + 1 < IN ? column[(k + 1) * OUT] : 0.f;
    }
  };
  float2 b[P::SIZE];
  ask(warp, 0, b);
  __syncthreads();
#pragma unroll 1
  for (int tile = warp; tile < (OUT + 7) / 8; tile += HEAD_WARPS) {
    float before[4 * MT], d[MT][4] = {};
#pragma unroll
    for (int i = 0; i < 4 * MT; i++) {
      const int r = i / 4 * 16 + g + i / 2 % 2 * 8, column = tile * 8 + 2 * t + i % 2;
      const float* from = PASSES == ALL ? plus : given;
      before[i] = from && r < rows && column < OUT ? from[(long long)r * OUT + column] : 0.f;
    }
    if (tile != warp) ask(tile, 0, b);
    times<MT, IN>(d, in, in_row, tile, b, ask);
#pragma unroll
    for (int i = 0; i < 4 * MT; i++) {
      const int r = i / 4 * 16 + g + i / 2 % 2 * 8, column = tile * 8 + 2 * t + i % 2;
      const bool there = r < rows && column < OUT;
      float slope = d[i / 4][i % 4];
      if (PASSES == ALL) slope += before[i];
      if (PASSES == POSITIVE && !(before[i] > 0.f)) slope = 0.f;
      if (PASSES == WINNERS) slope = packed(slope, place_of(before[i]));
      if (out) out[r * out_row + column] = there ? slope : 0.f;
      if (there) to[(long long)r * OUT + column] = slope;
    }
  }
}

// Gradients of the inputs of all linear layers, from those of z and logits (either may be missing).
template <int MT>
__device__ __forceinline__ void head_backward_(const float* of_z, const float* of_logits, const float* params,
                                               long long lane_params, const float* y2, const float* a1, const float* a2,
                                               const float* a3, float* d4, float* d3, float* d2, float* d1, float* d0,
                                               int B) {
  float* broad = shared_memory;
  float* narrow = broad + 16 * MT * BROAD;
  float* few = narrow + 16 * MT * NARROW;
  const float* own = params + blockIdx.y * lane_params;
  const int first = blockIdx.x * 16 * MT, rows = min(16 * MT, B - first);
  const long long at = (long long)blockIdx.y * B + first;
  for (int i = threadIdx.x; i < 16 * MT * COLUMNS; i += HEAD_THREADS) {
    const int r = i / COLUMNS, k = i % COLUMNS;
    few[r * FEW + k] = of_logits && r < rows && k < CLASSES ? of_logits[(at + r) * CLASSES + k] : 0.f;
  }
  linear_back<MT, CLASSES, F4, ALL>(few, FEW, own + AT_CLASSIFIER, of_z ? of_z + at * F4 : 0, 0, broad, BROAD, d4 + at * F4,
                                    rows);
  linear_back<MT, F4, F3, POSITIVE>(broad, BROAD, own + AT_HEAD2, 0, a3 + at * F3, narrow, NARROW, d3 + at * F3, rows);
  linear_back<MT, F3, F2, POSITIVE>(narrow, NARROW, own + AT_HEAD1, 0, a2 + at * F2, broad, BROAD, d2 + at * F2, rows);
  linear_back<MT, F2, F1, POSITIVE>(broad, BROAD, own + AT_FC2, 0, a1 + at * F1, narrow, NARROW, d1 + at * F1, rows);
  linear_back<MT, F1, F0, WINNERS>(narrow, NARROW, own + AT_FC1, 0, y2 + at * F0, 0, 0, d0 + at * F0, rows);
}

#define HEAD(MT)                                                                                                          \
  extern "C" __global__ void __launch_bounds__(HEAD_THREADS, 2) head_forward##MT(                                            \
      const float* y2, const float* params, long long lane_params, float* a1, float* a2, float* a3, float* z,             \
      float* logits, int B) {                                                                                             \
    head_forward_<MT>(y2, params, lane_params, a1, a2, a3, z, logits, B);                                                 \
  }                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(HEAD_THREADS, 2) head_backward##MT(                                           \
      const float* of_z, const float* of_logits, const float* params, long long lane_params, const float* y2,             \
      const float* a1, const float* a2, const float* a3, float* d4, float* d3, float* d2, float* d1, float* d0, int B) {  \
    head_backward_<MT>(of_z, of_logits, params, lane_params, y2, a1, a2, a3, d4, d3, d2, d1, d0, B);                      \
  }
HEAD(1)
HEAD(2)

// Gradients of a linear layer's weights and bias, (OUT, IN) = slopes^T (OUT, B) in (B, IN): a block has a tile of 128 by 64,
// a warp 16 rows of it; 64 samples at a time are in shared memory.
constexpr int TALL = 128, ACROSS = 64, DEEP = 64, TALL_ROW = stride(TALL, 8), ACROSS_ROW = stride(ACROSS, 8);
constexpr int HEAD_WEIGHTS_SHARED = DEEP * (TALL_ROW + ACROSS_ROW);

// WIDTH columns of samples, from column `first` of ALL_COLUMNS; what is not there is zero.
template <int ALL_COLUMNS, int WIDTH>
__device__ __forceinline__ void columns(float* to, int row, const float* from, int first, int samples) {
  constexpr int AT_ONCE = ALL_COLUMNS % 4 == 0 ? 4 : 1;
#pragma unroll 4
  for (int i = threadIdx.x; i < DEEP * WIDTH / AT_ONCE; i += THREADS) {
    const int b = i / (WIDTH / AT_ONCE), k = i % (WIDTH / AT_ONCE) * AT_ONCE;
    const bool there = b < samples && first + k < ALL_COLUMNS;
    copy<4 * AT_ONCE>(to + b * row + k, there ? from + b * ALL_COLUMNS + first + k : from, there);
  }
}

template <int IN, int OUT, bool PLACES>
__device__ __forceinline__ void weight_tile(int tile, const float* slopes, const float* in, float* to, int B) {
  constexpr int TILES = (IN + ACROSS - 1) / ACROSS;
  float* left = shared_memory;
  float* right = left + DEEP * TALL_ROW;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int n = tile / TILES * TALL, k = tile % TILES * ACROSS;
  float d[8][4] = {}, sums[2] = {};
  for (int first = 0; first < B; first += DEEP) {
    __syncthreads();
    columns<OUT, TALL>(left, TALL_ROW, slopes + first * OUT, n, B - first);
    columns<IN, ACROSS>(right, ACROSS_ROW, in + first * IN, k, B - first);
    copied();
    __syncthreads();
    if (n + warp * 16 >= OUT) continue;
#pragma unroll 2
    for (int b = 0; b < min(DEEP, B - first); b += 8) {
      float a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        a[i] = left[(b + t + i / 2 * 4) * TALL_ROW + warp * 16 + g + i % 2 * 8];
        sums[i % 2] += a[i];
      }
#pragma unroll
      for (int m = 0; m < 8; m++) {
        float b0 = right[(b + t) * ACROSS_ROW + m * 8 + g], b1 = right[(b + t + 4) * ACROSS_ROW + m * 8 + g];
        if (PLACES) b0 = operand(b0), b1 = operand(b1);
        product(d[m], a[0], a[1], a[2], a[3], b0, b1);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = n + warp * 16 + g + 8 * h;
    sums[h] += __shfl_xor_sync(~0u, sums[h], 1);
    sums[h] += __shfl_xor_sync(~0u, sums[h], 2);
    if (row >= OUT) continue;
    if (k == 0 && t == 0) to[OUT * IN + row] = sums[h];
#pragma unroll
    for (int m = 0; m < 8; m++) {
      const int column = k + m * 8 + 2 * t;
      if (column < IN) to[row * IN + column] = d[m][2 * h];
      if (column + 1 < IN) to[row * IN + column + 1] = d[m][2 * h + 1];
    }
  }
}

__host__ __device__ constexpr int tiles(int in, int out) {
  return (in + ACROSS - 1) / ACROSS * ((out + TALL - 1) / TALL);
}
constexpr int TILES1 = tiles(F0, F1), TILES2 = TILES1 + tiles(F1, F2), TILES3 = TILES2 + tiles(F2, F3);
constexpr int TILES4 = TILES3 + tiles(F3, F4), TILES = TILES4 + tiles(F4, CLASSES);

extern "C" __global__ void __launch_bounds__(THREADS)
head_weights(const float* y2, const float* a1, const float* a2, const float* a3, const float* z, const float* d1,
             const float* d2, const float* d3, const float* d4, const float* of_logits, float* gradient,
             long long lane_gradient, int B) {
  const int tile = blockIdx.x;
  const long long first = (long long)blockIdx.y * B;
  float* own = gradient + blockIdx.y * lane_gradient;
  if (tile < TILES1) weight_tile<F0, F1, true>(tile, d1 + first * F1, y2 + first * F0, own + AT_FC1, B);
  else if (tile < TILES2) weight_tile<F1, F2, false>(tile - TILES1, d2 + first * F2, a1 + first * F1, own + AT_FC2, B);
  else if (tile < TILES3) weight_tile<F2, F3, false>(tile - TILES2, d3 + first * F3, a2 + first * F2, own + AT_HEAD1, B);
  else if (tile < TILES4) weight_tile<F3, F4, false>(tile - TILES3, d4 + first * F4, a3 + first * F3, own + AT_HEAD2, B);
  else if (of_logits)
    weight_tile<F4, CLASSES, false>(tile - TILES4, of_logits + first * CLASSES, z + first * F4, own + AT_CLASSIFIER, B);
  else
    for (int i = threadIdx.x + (tile - TILES4) * THREADS; i < CLASSES * (F4 + 1); i += THREADS * (TILES - TILES4))
      own[AT_CLASSIFIER + i] = 0.f;
}

// Backwards through the second convolution. Both kernels take a window's gradients as [window][channel].
constexpr int ROWS2 = up(G * W2, 16), SLOPE = 18, SLOPES2 = up(ROWS2 * SLOPE, 4);
constexpr int SPREAD = stride(PATCH, 8), OWN_TILES = ((PATCH + 7) / 8 + WARPS - 1) / WARPS, HALF = (P1 + 1) / 2;
constexpr int CONV2_INPUT_SHARED = 2 * G * HIDDEN + 2 * SLOPES2 + ROWS2 * SPREAD;
constexpr int CONV2_WEIGHTS_SHARED = most(2 * G * HIDDEN + 2 * SLOPES2, 4 * N2 * SPREAD) + up(G * W2, 8);

// What the first convolution gave for this lane's images from `begin` on, and the gradients of the second one's windows, as
// many as a block has at a time, to one of two places in turn; of images that are not there zeros, and windows that nobody
// won.
__device__ __forceinline__ void copy_second(float* hiddens, float* slopes, const float* y1, const float* slopes2, int B,
                                            int begin, int first, int end) {
  const int turn = (begin - first) / G % 2, count = min(G, end - begin);
  const long long image = (long long)blockIdx.y * B + begin;
  float* hidden = hiddens + turn * G * HIDDEN;
  float* slope = slopes + turn * SLOPES2;
  copy_straight(hidden, y1 + image * HIDDEN, count * HIDDEN);
  fill(hidden + count * HIDDEN, (G - count) * HIDDEN, 0.f);
  for (int i = threadIdx.x; i < G * F0; i += THREADS) {
    float* to = slope + (i / F0 * W2 + i % W2) * SLOPE + i % F0 / W2;
    if (i < count * F0) copy<4>(to, slopes2 + image * F0 + i);
    else *to = packed(0.f, 4);
  }
}

// Nobody won in the rows below the windows.
__device__ __forceinline__ void clear_below_windows(float* slopes) {
  for (int turn = 0; turn < 2; turn++)
    fill(slopes + turn * SLOPES2 + G * W2 * SLOPE, SLOPES2 - G * W2 * SLOPE, packed(0.f, 4));
}

// The gradient of the input, as that of the first convolution's winners.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
conv2_input(const float* y1, const float* slopes2, const float* params, long long lane_params, float* slopes1, int B,
            int per) {
  float* hiddens = shared_memory;
  float* slopes = hiddens + 2 * G * HIDDEN;
  float* spread = slopes + 2 * SLOPES2;  // [window][pixel of its patch]
  const int lane = blockIdx.y, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int first = blockIdx.x * per, end = min(B, first + per);
  const float* w = params + lane * lane_params + AT_CONV2;

  auto fetch = [&](int begin) { copy_second(hiddens, slopes, y1, slopes2, B, begin, first, end); };
  clear_below_windows(slopes);
  fetch(first);
  // this warp's columns: pixels of a patch, and the weights that lead there from place t of each channel's window
  float b[N2][OWN_TILES];
#pragma unroll
  for (int i = 0; i < OWN_TILES; i++) {
    const int k = (warp + i * WARPS) * 8 + g, row = k / U % U - t / 2, at = k % U - t % 2;
    const bool there = k < PATCH && row >= 0 && row < 5 && at >= 0 && at < 5;
    const float* from = w + k / (U * U) * 25 + row * 5 + at;
#pragma unroll
    for (int n = 0; n < N2; n++) b[n][i] = there ? from[n * N1 * 25] : 0.f;
  }

  for (int begin = first; begin < end; begin += G) {
    const float* hidden = hiddens + (begin - first) / G % 2 * G * HIDDEN;
    const float* slope = slopes + (begin - first) / G % 2 * SLOPES2;
    copied();
    __syncthreads();
    if (begin + G < end) fetch(begin + G);
    // the windows' gradients, spread over their patches
#pragma unroll 1
    for (int tile = 0; tile < ROWS2 / 16; tile++) {
      float s[OWN_TILES][4] = {};
      const float* upper = slope + (tile * 16 + g) * SLOPE;
      const float* lower = upper + 8 * SLOPE;
#pragma unroll
      for (int n = 0; n < N2; n += 2) {
        const float2 v0 = pair(upper + n), v1 = pair(lower + n);
        const float a0 = if_won(v0.x, t), a1 = if_won(v1.x, t), a2 = if_won(v0.y, t), a3 = if_won(v1.y, t);
#pragma unroll
        for (int i = 0; i < OWN_TILES; i++) product(s[i], a0, a1, a2, a3, b[n][i], b[n + 1][i]);
      }
#pragma unroll
      for (int i = 0; i < OWN_TILES; i++) {
        const int k = (warp + i * WARPS) * 8 + 2 * t;
        if (k >= PATCH) continue;
        *reinterpret_cast<float2*>(spread + (tile * 16 + g) * SPREAD + k) = make_float2(s[i][0], s[i][1]);
        *reinterpret_cast<float2*>(spread + (tile * 16 + g + 8) * SPREAD + k) = make_float2(s[i][2], s[i][3]);
      }
    }
    __syncthreads();
    // every 2 x 2 pixels of a channel: what nine windows spread there
    float* to = slopes1 + ((long long)lane * B + begin) * SLOPES1;
#pragma unroll 1
    for (int i = threadIdx.x; i < min(G, end - begin) * N1 * HALF * HALF; i += THREADS) {
      const int x = i % HALF, y = i / HALF % HALF, n = i / (HALF * HALF) % N1, s = i / (HALF * HALF * N1);
      float2 sums[2] = {};
#pragma unroll
      for (int e = 0; e < 9; e++) {
        const int wy = y - e / 3, wx = x - e % 3;
        if (wy >= 0 && wy < P2 && wx >= 0 && wx < P2) {
          const float* from = spread + (s * W2 + wy * P2 + wx) * SPREAD + n * U * U + e / 3 * 2 * U + e % 3 * 2;
          const float2 v0 = pair(from), v1 = pair(from + U);
          sums[0].x += v0.x, sums[0].y += v0.y, sums[1].x += v1.x, sums[1].y += v1.y;
        }
      }
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int py = 2 * y + e / 2, px = 2 * x + e % 2;
        if (py >= P1 || px >= P1) continue;
        const int place = place_of(hidden[s * HIDDEN + n * PLANE + py * LINE + px]);
        to[(s * N1 + n) * WINDOWS1 + py * P1 + px] = packed(e % 2 ? sums[e / 2].y : sums[e / 2].x, place);
      }
    }
    for (int i = threadIdx.x; i < min(G, end - begin) * N1 * (WINDOWS1 - W1); i += THREADS)
      to[i / most(1, WINDOWS1 - W1) * WINDOWS1 + W1 + i % most(1, WINDOWS1 - W1)] = packed(0.f, 4);
  }
}

// This block's part of the gradient of the weights: rows are (channel, place), columns pixels of a patch, windows are what
// is summed over.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
conv2_weights(const float* y1, const float* slopes2, float* partial, int B, int per) {
  float* hiddens = shared_memory;
  float* slopes = hiddens + 2 * G * HIDDEN;
  int* corners = reinterpret_cast<int*>(shared_memory + CONV2_WEIGHTS_SHARED - up(G * W2, 8));  // of each window's patch
  const int lane = blockIdx.y, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int first = blockIdx.x * per, end = min(B, first + per);

  auto fetch = [&](int begin) { copy_second(hiddens, slopes, y1, slopes2, B, begin, first, end); };
  clear_below_windows(slopes);
  fetch(first);
  for (int m = threadIdx.x; m < up(G * W2, 8); m += THREADS) {
    const int s = min(m, G * W2 - 1) / W2, window = min(m, G * W2 - 1) % W2;
    corners[m] = s * HIDDEN + window / P2 * 2 * LINE + window % P2 * 2;
  }
  int shift[OWN_TILES];  // of this warp's columns
#pragma unroll
  for (int i = 0; i < OWN_TILES; i++) {
    const int k = (warp + i * WARPS) * 8 + g;
    shift[i] = k < PATCH ? k / (U * U) * PLANE + k / U % U * LINE + k % U : 0;
  }
  float d[4][OWN_TILES][4] = {};
  float bias = 0.f;  // of channel threadIdx.x / 16

  for (int begin = first; begin < end; begin += G) {
    const float* hidden = hiddens + (begin - first) / G % 2 * G * HIDDEN;
    const float* slope = slopes + (begin - first) / G % 2 * SLOPES2;
    copied();
    __syncthreads();
    if (begin + G < end) fetch(begin + G);
#pragma unroll
    for (int m = 0; m < ROWS2; m += 16) bias += of_winner(slope[(m + threadIdx.x % 16) * SLOPE + threadIdx.x / 16]);
#pragma unroll 1
    for (int step = 0; step < up(G * W2, 8) / 8; step++) {
      const int m0 = step * 8 + t, m1 = m0 + 4;
      float a[4][4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int n = i * 4 + g / 4;
        a[i][0] = if_won(slope[m0 * SLOPE + n], g % 4), a[i][1] = if_won(slope[m0 * SLOPE + n + 2], g % 4);
        a[i][2] = if_won(slope[m1 * SLOPE + n], g % 4), a[i][3] = if_won(slope[m1 * SLOPE + n + 2], g % 4);
      }
      const float *p0 = hidden + corners[m0], *p1 = hidden + corners[m1];
#pragma unroll
      for (int j = 0; j < OWN_TILES; j++) {
        const float b0 = operand(p0[shift[j]]), b1 = operand(p1[shift[j]]);
#pragma unroll
        for (int i = 0; i < 4; i++) product(d[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b0, b1);
      }
    }
  }
  __syncthreads();
  float* sums = shared_memory;  // [channel, place][pixel of a patch]
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < OWN_TILES; j++) {
      const int k = (warp + j * WARPS) * 8 + 2 * t;
      if (k >= PATCH) continue;
      *reinterpret_cast<float2*>(sums + (i * 16 + g) * SPREAD + k) = make_float2(d[i][j][0], d[i][j][1]);
      *reinterpret_cast<float2*>(sums + (i * 16 + g + 8) * SPREAD + k) = make_float2(d[i][j][2], d[i][j][3]);
    }
#pragma unroll
  for (int e = 1; e < 16; e *= 2) bias += __shfl_xor_sync(~0u, bias, e);
  __syncthreads();
  float* to = partial + ((long long)lane * gridDim.x + blockIdx.x) * (WEIGHTS2 + N2);
#pragma unroll 2
  for (int i = threadIdx.x; i < WEIGHTS2; i += THREADS) {
    const int n = i / (N1 * 25), c = i / 25 % N1, row = i / 5 % 5, at = i % 5;
    float sum = 0.f;
#pragma unroll
    for (int q = 0; q < 4; q++) sum += sums[(n * 4 + q) * SPREAD + c * U * U + (row + q / 2) * U + at + q % 2];
    to[i] = sum;
  }
  if (threadIdx.x % 16 == 0) to[WEIGHTS2 + threadIdx.x / 16] = bias;
}

// This block's part of the gradient of the first convolution's weights: rows are pairs of neighbours in a patch, columns
// (channel, place); each warp sums over windows of its own.
constexpr int TILES_PAIR = (J * 3 + 7) / 8, SUMS1 = TILES_PAIR * 16 * 24;
constexpr int CONV1_WEIGHTS_SHARED = most(2 * (IMAGES + G * SLOPES1) + W1, WARPS / 2 * SUMS1);

extern "C" __global__ void __launch_bounds__(THREADS, 2)
conv1_weights(const float* x, long long x_lane, const float* slopes1, float* partial, int B, int per) {
  float* images = shared_memory;
  float* slopes = images + 2 * IMAGES;
  int* corners = reinterpret_cast<int*>(slopes + 2 * G * SLOPES1);  // where each window's patch begins
  const int lane = blockIdx.y, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int first = blockIdx.x * per, end = min(B, first + per);
  x += lane * x_lane;

  auto fetch = [&](int begin) {
    const int buffer = (begin - first) / G % 2, count = min(G, end - begin);
    copy_images(images + buffer * IMAGES, x, begin, end);
    float* slope = slopes + buffer * G * SLOPES1;
    copy_straight(slope, slopes1 + ((long long)lane * B + begin) * SLOPES1, count * SLOPES1);
    fill(slope + count * SLOPES1, (G - count) * SLOPES1, packed(0.f, 4));
  };
  clear_below(images);
  fetch(first);
  for (int w = threadIdx.x; w < W1; w += THREADS) corners[w] = w / P1 * 2 * C * ROW + w % P1 * 2;
  int shift[TILES_PAIR];
#pragma unroll
  for (int i = 0; i < TILES_PAIR; i++) {
    const int p = i * 8 + g;
    shift[i] = p < J * 3 ? p / 3 * ROW + p % 3 * 2 : 0;
  }
  float d[TILES_PAIR][3][4] = {};
  float bias = 0.f;  // of channel `warp`

  for (int begin = first; begin < end; begin += G) {
    const float* image = images + (begin - first) / G % 2 * IMAGES;
    const float* slope = slopes + (begin - first) / G % 2 * G * SLOPES1;
    copied();
    __syncthreads();
    if (begin + G < end) fetch(begin + G);
    if (warp < N1)
      for (int s = 0; s < G; s++)
        for (int i = threadIdx.x % 32; i < WINDOWS1; i += 32) bias += of_winner(slope[s * SLOPES1 + warp * WINDOWS1 + i]);
#pragma unroll 1
    for (int step = warp; step < G * WINDOWS1 / 8; step += WARPS) {
      const int s = step / (WINDOWS1 / 8), m0 = step % (WINDOWS1 / 8) * 8 + t, m1 = m0 + 4;
      const float* p0 = image + s * IMAGE + corners[min(m0, W1 - 1)];
      const float* p1 = image + s * IMAGE + corners[min(m1, W1 - 1)];
      float b[3][2];
#pragma unroll
      for (int j = 0; j < 3; j++) {
        const float* from = slope + s * SLOPES1 + (j * 2 + g / 4) * WINDOWS1;
        b[j][0] = if_won(from[m0], g % 4), b[j][1] = if_won(from[m1], g % 4);
      }
#pragma unroll
      for (int i = 0; i < TILES_PAIR; i++) {
        float2 v0 = pair(p0 + shift[i]), v1 = pair(p1 + shift[i]);
#pragma unroll
        for (int j = 0; j < 3; j++) product(d[i][j], v0.x, v0.y, v1.x, v1.y, b[j][0], b[j][1]);
      }
    }
  }
  // the warps' sums, half of them added to the other half, again and again
#pragma unroll 1
  for (int half = WARPS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (warp >= half && warp < 2 * half) {
      float* to = shared_memory + (warp - half) * SUMS1 + threadIdx.x % 32;
#pragma unroll
      for (int i = 0; i < TILES_PAIR * 12; i++) to[i * 32] = d[i / 12][i / 4 % 3][i % 4];
    }
    __syncthreads();
    if (warp < half) {
      const float* from = shared_memory + warp * SUMS1 + threadIdx.x % 32;
#pragma unroll
      for (int i = 0; i < TILES_PAIR * 12; i++) d[i / 12][i / 4 % 3][i % 4] += from[i * 32];
    }
  }
  __syncthreads();
  if (warp == 0) {
#pragma unroll
    for (int i = 0; i < TILES_PAIR; i++)
#pragma unroll
      for (int j = 0; j < 3; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)  // [neighbour][pair][column]
          shared_memory[(e / 2 * TILES_PAIR * 8 + i * 8 + g) * 24 + j * 8 + 2 * t + e % 2] = d[i][j][e];
  }
#pragma unroll
  for (int e = 1; e < 32; e *= 2) bias += __shfl_xor_sync(~0u, bias, e);
  __syncthreads();
  float* to = partial + ((long long)lane * gridDim.x + blockIdx.x) * (WEIGHTS1 + N1);
  for (int i = threadIdx.x; i < WEIGHTS1; i += THREADS) {
    const int n = i / (C * 25), c = i / 25 % C, row = i / 5 % 5, at = i % 5;
    float sum = 0.f;
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const int v = at + q % 2, p = ((row + q / 2) * C + c) * 3 + v / 2;
      sum += shared_memory[(v % 2 * TILES_PAIR * 8 + p) * 24 + n * 4 + q];
    }
    to[i] = sum;
  }
  if (warp < N1 && threadIdx.x % 32 == 0) to[WEIGHTS1 + warp] = bias;
}

// The blocks' parts of the convolutions' gradients, added up.
extern "C" __global__ void __launch_bounds__(THREADS)
fold(const float* partial1, const float* partial2, int parts, float* gradient, long long lane_gradient) {
  const int i = blockIdx.x * THREADS + threadIdx.x, lane = blockIdx.y;
  const bool one = i < WEIGHTS1 + N1;
  const int at = one ? i : i - (WEIGHTS1 + N1), size = one ? WEIGHTS1 + N1 : WEIGHTS2 + N2;
  if (at >= size) return;
  const float* from = (one ? partial1 : partial2) + (long long)lane * parts * size + at;
  float sum = 0.f;
#pragma unroll 4
  for (int part = 0; part < parts; part++) sum += from[(long long)part * size];
  gradient[lane * lane_gradient + (one ? AT_CONV1 : AT_CONV2) + at] = sum;
}

// What the host has to know: floats of shared memory of each kernel, tiles of `head_weights`, floats of an image's slopes1
// and of what the first convolution gives.
extern "C" __constant__ const int sizes[] = {
    CONV_FORWARD_SHARED, HEAD_FORWARD_SHARED, HEAD_BACKWARD_SHARED, HEAD_WEIGHTS_SHARED, CONV2_INPUT_SHARED,
    CONV2_WEIGHTS_SHARED, CONV1_WEIGHTS_SHARED, TILES, SLOPES1, HIDDEN};
