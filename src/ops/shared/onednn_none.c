/* SPDX-License-Identifier: Apache-2.0
 * Where oneDNN was not found at build time: every create refuses. */
#include "ops/shared/onednn.h"

const char *mica_onednn_version(void)
{
    return NULL;
}
bool mica_onednn_has_act(mica_act act)
{
    (void)act;
    return false;
}
bool mica_onednn_exact_int8(void)
{
    return false;
}
bool mica_onednn_adds_late(void)
{
    return false;
}
mica_status mica_onednn_create(const mica_onednn_spec *spec, mica_onednn **primitive, mica_why *why)
{
    (void)spec;
    *primitive = NULL;
    return mica_refuse(why, "built without oneDNN");
}
mica_status mica_onednn_probe(const mica_onednn_spec *spec, mica_why *why)
{
    (void)spec;
    return mica_refuse(why, "built without oneDNN");
}
void mica_onednn_destroy(mica_onednn *p)
{
    (void)p;
}
size_t mica_onednn_workspace(const mica_onednn *p)
{
    (void)p;
    return 0;
}
const char *mica_onednn_name(const mica_onednn *p)
{
    (void)p;
    return "";
}
double mica_onednn_reorder_bytes(const mica_onednn *p)
{
    (void)p;
    return 0;
}
size_t mica_onednn_packed_bytes(const mica_onednn *p, int tensor)
{
    (void)p, (void)tensor;
    return 0;
}
mica_status mica_onednn_pack(const mica_onednn *p, int tensor, const void *from, void *to)
{
    (void)p, (void)tensor, (void)from, (void)to;
    return mica_fail(MICA_INTERNAL, "built without oneDNN");
}
mica_status mica_onednn_unpack(const mica_onednn *p, mica_onednn_args *args, void *workspace)
{
    (void)p, (void)args, (void)workspace;
    return mica_fail(MICA_INTERNAL, "built without oneDNN");
}
bool mica_onednn_ready(const mica_onednn *p)
{
    (void)p;
    return false;
}
mica_status mica_onednn_run(const mica_onednn *p, const mica_onednn_args *args, void *workspace)
{
    (void)p, (void)args, (void)workspace;
    return mica_fail(MICA_INTERNAL, "built without oneDNN");
}
mica_status mica_onednn_gemm(const mica_onednn_gemm_args *args)
{
    (void)args;
    return mica_fail(MICA_INTERNAL, "built without oneDNN");
}
