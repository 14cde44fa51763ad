#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The GPU played by the CPU runs what is right and notices what is not: kernels planted in place of the
# activation's, and faults in one whose blocks wait for one another. Usage: emu.sh MICA FOLDER SOURCES; FOLDER has the played driver and compiler.
set -u
mica=$1 emu=$2 sources=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
cp -r "$sources" "$folder/kernels"
kernel=$folder/kernels/ops/activation/activation.cu

first='overlap_wait();'
# planted EXIT_CODE "TEXT OF THE OUTPUT" <<kernel's body
planted() {
    {
        printf '#include "kernels/mbarrier.cuh"\n#include "kernels/overlap.cuh"\n'
        printf '#include "ops/pointwise/pointwise_args.h"\n'
        printf '__device__ void put(const mica_pointwise_args &a, int i, float v)\n{\n'
        printf '    float *out = (float *)a.at[3] + i, old = a.beta != 0 ? (float)a.beta * *out : 0;\n'
        printf '    *out = (float)a.alpha * (v > 0 ? v : 0) + old;\n}\n'
        printf 'extern "C" __global__ void activation(const mica_pointwise_args a)\n{\n'
        printf '    %s\n    if (blockIdx.x) return;\n    const int t = threadIdx.x;\n' "$first"
        printf '    const float *x = (const float *)a.at[0];\n    float *out = (float *)a.at[3];\n'
        cat
        printf '}\n'
    } >"$kernel"
    MICA_CUDA_DRIVER=$emu/libcuda.so.1 MICA_NVRTC=$emu/libnvrtc.so.13 MICA_CACHE_BYTES=0 \
        MICA_KERNEL_DIR=$folder/kernels "$mica" check -q -d cuda:0 -e cuda --fill exact \
        'activation act=relu x=f32:256' >"$folder/out" 2>&1
    code=$?
    [ $code = "$1" ] && grep -q "$2" "$folder/out" && return
    echo "exit code $code, expected $1 and '$2' in"
    cat "$folder/out" "$kernel"
    failed=1
}

planted 0 '2 passed, 0 failed' <<'E'
    __shared__ float line[256];
    line[t] = x[t];
    __syncthreads();
    put(a, 255 - t, line[255 - t]);
E
planted 1 '0 passed, 2 failed' <<'E'
    __shared__ float line[256]; /* and no barrier */
    line[t] = x[t];
    put(a, 255 - t, line[255 - t]);
E
planted 4 "where others of the warp are at" <<'E'
    if (t % 32 < 16)
        out[t] = __shfl_sync(0xffffffffu, x[t], 0);
    else
        out[t] = (float)__ballot_sync(0xffffffffu, 1);
E
planted 4 'nothing can go on; waiting: 0.0 0.32' <<'E'
    __shared__ u64 bar;
    if (t == 0) mbarrier_init(shared_address(&bar), 257);
    __syncthreads();
    mbarrier_arrive(shared_address(&bar));
    mbarrier_wait(shared_address(&bar), 0);
    out[t] = x[t];
E
planted 4 'more arrivals than the barrier expects' <<'E'
    __shared__ u64 bar;
    if (t == 0) mbarrier_init(shared_address(&bar), 1);
    __syncthreads();
    if (t == 0) mbarrier_arrive_expect(shared_address(&bar), 16);
    __syncthreads();
    if (t == 1) mbarrier_arrive(shared_address(&bar));
E
planted 4 'shared address [45][0-9]*, 4 bytes, of 1024' <<'E'
    __shared__ float line[256];
    line[t] = x[t];
    __syncthreads();
    asm volatile("ld.shared.b32 %0, [%1];" : "=f"(out[t]) : "r"(shared_address(line) + 4096 + 4 * t) : "memory");
E
planted 4 'setmaxnreg of 20' <<'E'
    registers_give<20>();
E
planted 4 'no such instruction: brkpt;' <<'E'
    asm volatile("brkpt;" ::: "memory");
E
first=''
planted 4 'the end before griddepcontrol.wait' <<'E'
    if (t < 32) overlap_wait();
E
planted 4 'memory at 0x[0-9a-f]* before griddepcontrol.wait' <<'E'
    const float early = x[t];
    overlap_wait();
    put(a, t, early);
E
planted 4 'ld.global.* before griddepcontrol.wait' <<'E'
    u32 w[4];
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(x));
    overlap_wait();
    put(a, t, x[t]);
E
# Blocks of a cooperative launch run at once: two that hand on h. PATTERN of sed, exit code, text.
together() {
    cp "$sources/ops/rnn/rnn_persistent.cu" "$folder/kernels/ops/rnn/rnn_persistent.cu"
    sed -i "$1" "$folder/kernels/ops/rnn/rnn_persistent.cu"
    MICA_CUDA_DRIVER=$emu/libcuda.so.1 MICA_NVRTC=$emu/libnvrtc.so.13 MICA_CACHE_BYTES=0 FAKE_SMS=2 \
        MICA_KERNEL_DIR=$folder/kernels "$mica" check -q -d cuda:0 -e persistent --fill random \
        'rnn cell=tanh x=bf16:4x2x4 hidden=16' >"$folder/out" 2>&1
    code=$?
    [ $code = "$2" ] && grep -q "$3" "$folder/out" && return
    echo "exit code $code, expected $2 and '$3' with $1 in"
    cat "$folder/out"
    failed=1
}
late='for (int i = 0; i < 9 * (int)blockIdx.x + 1; i++) __syncthreads();' # one block is behind the other
together '' 0 '1 passed, 0 failed'
together "s/if (!last_step) grid_wait(/$late &/" 0 '1 passed, 0 failed'
together "s/if (!last_step) grid_wait(.*/$late/" 1 '0 passed, 1 failed'
together 's/(step + 2) \* e.blocks/(step + 3) * e.blocks/' 4 'nothing can go on; waiting: 0.0 0.32'
exit $failed
