#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# oneDNN's rectifier and clip make NaN a number, and which one depends on an argument that has nothing to do with
# NaN: relu with a slope (alpha) of 0 gives 0 for NaN, with any other slope NaN; clip gives its lower bound. So a
# network whose sums have become NaN computes on with zeros behind its first relu. The documentation gives
# formulas (relu: x if x > 0, else alpha x, which is NaN for NaN) and no word about it. PyTorch's own relu lets
# NaN pass.
#
# Packages of Debian 12: libdnnl2 and libdnnl-dev 2.6.3-1, on x86-64 CPUs.
# Seen: "relu 0: 0, relu 0.5: nan, clip 1..6: 1, clip_v2 1..6: 1, tanh: nan, and behind a product relu 0: 0".
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -q -o APT::Sandbox::User=root libdnnl2=2.6.3-1 libdnnl-dev=2.6.3-1 >/dev/null
for package in *.deb; do dpkg -x "$package" root; done
cat >nan.c <<'C'
#include <dnnl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void need(dnnl_status_t status)
{
    if (status != dnnl_success) exit(2);
}

/* What the function makes of a run of NaN. */
static float of_nan(dnnl_alg_kind_t kind, float alpha, float beta)
{
    float x[16], y[16] = {0};
    const dnnl_dims_t dims = {16};
    dnnl_memory_desc_t md;
    dnnl_memory_t in, out;
    dnnl_eltwise_desc_t desc;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t eltwise;
    for (int i = 0; i < 16; i++) x[i] = NAN;
    need(dnnl_memory_desc_init_by_tag(&md, 1, dims, dnnl_f32, dnnl_a));
    need(dnnl_memory_create(&in, &md, engine, x));
    need(dnnl_memory_create(&out, &md, engine, y));
    need(dnnl_eltwise_forward_desc_init(&desc, dnnl_forward_inference, kind, &md, alpha, beta));
    need(dnnl_primitive_desc_create(&pd, &desc, NULL, engine, NULL));
    need(dnnl_primitive_create(&eltwise, pd));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, in}, {DNNL_ARG_DST, out}};
    need(dnnl_primitive_execute(eltwise, stream, 2, args));
    need(dnnl_stream_wait(stream));
    return y[0];
}

/* NaN times 1, and relu behind it. */
static float behind_product(void)
{
    float a = NAN, b = 1, c = 5;
    const dnnl_dims_t dims = {1, 1};
    dnnl_memory_desc_t md;
    dnnl_memory_t ma, mb, mc;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t matmul;
    need(dnnl_memory_desc_init_by_tag(&md, 2, dims, dnnl_f32, dnnl_ab));
    need(dnnl_memory_create(&ma, &md, engine, &a));
    need(dnnl_memory_create(&mb, &md, engine, &b));
    need(dnnl_memory_create(&mc, &md, engine, &c));
    need(dnnl_post_ops_create(&ops));
    need(dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_relu, 0, 0));
    need(dnnl_primitive_attr_create(&attr));
    need(dnnl_primitive_attr_set_post_ops(attr, ops));
    need(dnnl_matmul_desc_init(&desc, &md, &md, NULL, &md));
    need(dnnl_primitive_desc_create(&pd, &desc, attr, engine, NULL));
    need(dnnl_primitive_create(&matmul, pd));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, ma}, {DNNL_ARG_WEIGHTS, mb}, {DNNL_ARG_DST, mc}};
    need(dnnl_primitive_execute(matmul, stream, 3, args));
    need(dnnl_stream_wait(stream));
    return c;
}

static const char *shown(float v)
{
    static char text[8][32];
    static int next;
    char *t = text[next++ % 8];
    if (isnan(v)) return "nan"; /* of either sign */
    snprintf(t, 32, "%g", (double)v);
    return t;
}

int main(void)
{
    need(dnnl_engine_create(&engine, dnnl_cpu, 0));
    need(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    printf("relu 0: %s, relu 0.5: %s, clip 1..6: %s, clip_v2 1..6: %s, tanh: %s, and behind a product relu 0: %s\n",
           shown(of_nan(dnnl_eltwise_relu, 0, 0)), shown(of_nan(dnnl_eltwise_relu, 0.5f, 0)),
           shown(of_nan(dnnl_eltwise_clip, 1, 6)), shown(of_nan(dnnl_eltwise_clip_v2, 1, 6)),
           shown(of_nan(dnnl_eltwise_tanh, 0, 0)), shown(behind_product()));
    return 0;
}
C
library=$(dirname "$(find root -name 'libdnnl.so.2' | head -n 1)")
cc -std=c11 -Iroot/usr/include nan.c -o nan -L"$library" -l:libdnnl.so.2 -Wl,--allow-shlib-undefined
said=$(LD_LIBRARY_PATH=$library ./nan)
echo "of NaN: $said"
[ "$said" = "relu 0: 0, relu 0.5: nan, clip 1..6: 1, clip_v2 1..6: 1, tanh: nan, and behind a product relu 0: 0" ]
