/* SPDX-License-Identifier: Apache-2.0
 * What the engines of deform_conv share. */
#ifndef MICA_OPS_DEFORM_CONV_DEFORM_CONV_H
#define MICA_OPS_DEFORM_CONV_DEFORM_CONV_H

#include "mica/deform_conv.h"
#include "ops/deform_conv/deform_conv_args.h"
#include "ops/op.h"

static inline const mica_tensor *mica_deform_conv_filter(const mica_deform_conv_desc *d)
{
    return d->pass == MICA_DEFORM_CONV_WGRAD ? &d->dw : &d->w;
}
static inline const mica_tensor *mica_deform_conv_output(const mica_deform_conv_desc *d)
{
    return d->pass == MICA_DEFORM_CONV_FWD ? &d->y : &d->dy;
}

/* Sizes and strides, of all images. */
void mica_deform_conv_args_make(const mica_deform_conv_desc *d, mica_deform_conv_args *a);
void mica_deform_conv_reference(const void *desc, const mica_view *args, const double *scalars);

/* ---- engines ---- */

enum { MICA_DEFORM_CONV_BLOCK = 256 }; /* threads */

/* Another operation; plan NULL: it is not needed. */
typedef struct mica_deform_conv_child {
    mica_plan *plan;
    size_t at;
} mica_deform_conv_child;

mica_status mica_deform_conv_run_child(const mica_deform_conv_child *c, const mica_run *run,
                                       void *const *args, int count, const double *scalars);
/* Books memory for a tensor, `packed`. */
mica_status mica_deform_conv_book(mica_plan *plan, const char *name, const mica_tensor *packed,
                                  size_t *at);
mica_status mica_deform_conv_add_copy(mica_plan *plan, mica_deform_conv_child *c,
                                      const mica_tensor *from, const mica_tensor *to);
/* Whether the dimensions from the first to the last are as one, and the stride of that. */
bool mica_deform_conv_is_merged(const mica_tensor *t, int first);
int64_t mica_deform_conv_merged_stride(const mica_tensor *t, int first);
/* Of rank 4, of these strides. */
mica_tensor mica_deform_conv_matrices(mica_dtype type, const int64_t dims[4],
                                      const int64_t strides[4]);
/* Where image n of a tensor begins. */
void *mica_deform_conv_image(void *data, const mica_tensor *t, int64_t n);
/* A part of all images, the same each time: as many as the memory of columns is for, or one. */
int64_t mica_deform_conv_images(const mica_deform_conv_args *a, mica_dtype type);
/* The kernel that writes columns of args->images. */
mica_status mica_deform_conv_add_columns(mica_plan *plan, mica_deform_conv_args *a,
                                         mica_kernel **kernel, mica_grid *grid);
/* Runs it, or does so on the CPU. */
mica_status mica_deform_conv_write_columns(const mica_plan *plan, const mica_kernel *kernel,
                                           const mica_grid *grid, const mica_deform_conv_args *a,
                                           void *stream);
/* Constants of all kernels. */
void mica_deform_conv_prologue(const mica_deform_conv_desc *d, mica_text *text);

/* Gradients, of engines "gemm". */
mica_status mica_deform_conv_build_dgrad(mica_plan *plan);
mica_status mica_deform_conv_build_wgrad(mica_plan *plan);
mica_status mica_deform_conv_run_dgrad(const mica_plan *plan, const mica_run *run);
mica_status mica_deform_conv_run_wgrad(const mica_plan *plan, const mica_run *run);

/* Loops of the CPU, by what places are formed in. A row: of pixels of one tap, image and offset
 * group; a share: some channels of an offset group of an image, whose sums are over all taps. */
typedef struct mica_deform_conv_loops {
    void (*columns)(const mica_deform_conv_args *a, mica_dtype type, int64_t row);
    void (*slopes)(const mica_deform_conv_args *a, mica_dtype type, int64_t row);
    /* sums: of that type, channels x spatial of x of each image; rounded to dx. */
    void (*sum)(const mica_deform_conv_args *a, const mica_tensor *dx, int64_t share, void *sums,
                void *to);
} mica_deform_conv_loops;
enum { MICA_DEFORM_CONV_SHARE = 16 }; /* channels */
extern const mica_deform_conv_loops mica_deform_conv_loops_f32, mica_deform_conv_loops_f64;
static inline const mica_deform_conv_loops *mica_deform_conv_loops_of(mica_dtype type)
{
    return type == MICA_F64 ? &mica_deform_conv_loops_f64 : &mica_deform_conv_loops_f32;
}
static inline int64_t mica_deform_conv_rows(const mica_deform_conv_args *a)
{
    return a->images * a->offset_groups * a->taps * a->axis[0].out;
}

extern const mica_op mica_op_deform_conv;
extern const mica_engine mica_deform_conv_cpu, mica_deform_conv_cuda;

#endif
