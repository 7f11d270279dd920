// Runs CUDA kernels on a CPU, one block after the other, so that they can be tested without a GPU. A block's threads are
// fibers that give way where they wait for each other; the tensor cores' product is formed in float32, operand by operand
// from the registers of the threads that the instruction reads.
#pragma once
#define ON_CPU 1
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
using std::max;
using std::min;

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }

struct Index { int x, y, z; };
static Index threadIdx, blockIdx, gridDim;
static float* shared_memory;

enum Wait { NOT, WARP, BLOCK, DONE };
struct Fiber { ucontext_t context; jmp_buf at; bool begun; Wait wait; int phase; std::vector<char> stack; };
static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static ucontext_t outside;
static float slots[2][32][32][8];  // [phase][warp][thread]

inline void give_way(Wait why) {
  const int me = threadIdx.x;
  fibers[me].wait = why;
  if (!_setjmp(fibers[me].at)) _longjmp(scheduler, 1);  // a context is changed once, since that is a system call
}

inline void go_on(Fiber& fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber.begun) _longjmp(fiber.at, 1);
  fiber.begun = true;
  swapcontext(&outside, &fiber.context);
}
inline void __syncthreads() { give_way(BLOCK); }

// Every thread of the warp puts values down; all see all of them.
template <int N>
inline float (*exchanged(const float (&values)[N]))[8] {
  const int me = threadIdx.x, warp = me / 32, phase = fibers[me].phase ^= 1;
  memcpy(slots[phase][warp][me % 32], values, sizeof values);
  give_way(WARP);
  return slots[phase][warp];
}
inline float __shfl_xor_sync(unsigned, float value, int other) {
  const float mine[1] = {value};
  return exchanged(mine)[(threadIdx.x % 32) ^ other][0];
}
template <int BYTES>
inline void copy(float* to, const float* from, bool there = true) {
  if (there) memcpy(to, from, BYTES);
  else memset(to, 0, BYTES);
}
inline void copied() {}
inline float rounded(float x) { return x; }
inline void tensor_cores(float (&d)[4], float a0, float a1, float a2, float a3, float b0, float b1) {
  const float mine[6] = {a0, a1, a2, a3, b0, b1};
  float(*all)[8] = exchanged(mine);
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 8; k++)
      d[i] += all[g * 4 + k % 4][k / 4 * 2 + i / 2] * all[(2 * t + i % 2) * 4 + k % 4][4 + k / 4];
}

template <class... A, size_t... I>
void unpack(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
}

template <class... A>
void launch(void (*kernel)(A...), const int* grid, int threads, int shared, void** arguments) {
  static void (*body)(void**);
  static void (*own)(A...);
  static void** given;
  own = kernel, given = arguments;
  body = [](void** with) { unpack(own, with, std::index_sequence_for<A...>{}); };
  fibers.resize(threads);
  gridDim = {grid[0], grid[1], 1};
  std::vector<float> memory(shared / 4 + 4);
  shared_memory = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
  for (int block = 0; block < grid[0] * grid[1]; block++) {
    blockIdx = {block % grid[0], block / grid[0], 0};
    std::fill(memory.begin(), memory.end(), NAN);  // what nobody wrote shows
    for (auto& fiber : fibers) {
      fiber.wait = NOT, fiber.phase = 0, fiber.begun = false, fiber.stack.resize(1 << 16);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data(), fiber.context.uc_stack.ss_size = fiber.stack.size();
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, static_cast<void (*)()>([] { body(given); give_way(DONE); }), 0);
    }
    auto release = [&](int first, int count, Wait what) {  // those who wait, once all that are left do
      int waiting = 0, left = 0;
      for (int i = first; i < first + count; i++) waiting += fibers[i].wait == what, left += fibers[i].wait != DONE;
      if (!waiting || waiting < left) return false;
      for (int i = first; i < first + count; i++)
        if (fibers[i].wait == what) fibers[i].wait = NOT;
      return true;
    };
    for (bool moved = true; moved;) {
      moved = false;
      for (int warp = 0; warp < threads / 32; warp++)
        do {
          for (int i = warp * 32; i < warp * 32 + 32; i++)
            if (fibers[i].wait == NOT) threadIdx = {i, 0, 0}, go_on(fibers[i]), moved = true;
        } while (release(warp * 32, 32, WARP));
      moved |= release(0, threads, BLOCK);
    }
    for (auto& fiber : fibers)
      if (fiber.wait != DONE) abort();  // threads wait for others that never come
  }
}

#define LAUNCHER(kernel)                                                                                   \
  extern "C" void launch_##kernel(const int* grid, int threads, int shared, void** arguments) {           \
    launch(kernel, grid, threads, shared, arguments);                                                      \
  }
