/* SPDX-License-Identifier: Apache-2.0
 * `mica list`: operations with their fields, arguments, scalars and engines; also as the Markdown
 * of docs/ops.md. */
#include "json.h"
#include "bench/table.h"

#include <stdlib.h>
#include <string.h>

typedef struct list {
    cli_options options;
    bool markdown;
} list;

enum { KEY_MARKDOWN = 0x100 };
static const struct argp_option options[] = {
    {"markdown", KEY_MARKDOWN, NULL, 0, "print the text of docs/ops.md", 0}, {0}};
static const char doc[] = "Lists operations; with a name, its fields, scalars and engines."
                          "\vExamples:\n"
                          "  mica list\n"
                          "  mica list conv\n"
                          "  mica list --json - gemm\n";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    list *l = state->input;
    (void)arg;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &l->options;
        return 0;
    case KEY_MARKDOWN:
        l->markdown = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* "fwd, dgrad, wgrad"; the caller frees. */
static char *spellings(const mica_field_info *f)
{
    char *text = cli_format("%s", "");
    for (int i = 0; f->spellings && f->spellings[i]; i++) {
        if (!*f->spellings[i]) continue;
        char *longer = cli_format("%s%s%s", text, *text ? ", " : "", f->spellings[i]);
        free(text);
        text = longer;
    }
    return text;
}

static const char *direction(mica_dir dir)
{
    static const char *const names[] = {"-", "in", "out", "inout"};
    return names[dir];
}

/* "f64, f32, f16, bf16", or "by others" where other arguments decide; the caller frees. */
static char *types_of(const mica_arg_info *a)
{
    char *text = cli_format("%s", a->types ? "" : "by others");
    for (int d = 1; d < 32; d++) {
        if (!(a->types >> d & 1)) continue;
        char *longer =
            cli_format("%s%s%s", text, *text ? ", " : "", mica_dtype_name((mica_dtype)d));
        free(text);
        text = longer;
    }
    return text;
}

/* Passes of an operation: the spellings of its first field if that is called "pass", else one. */
static int passes(const char *op, const char *const **names)
{
    static const char *const only[] = {"direction", NULL};
    mica_field_info f;
    int n = 0;
    *names = only;
    if (mica_op_field(op, 0, &f) == MICA_OK && !strcmp(f.name, "pass") && f.spellings)
        *names = f.spellings;
    while (n < 3 && (*names)[n]) n++;
    return n;
}

/* ---- text ---- */

/* Engines of one backend, best first: "onednn, cpu, ref"; the caller frees. */
static char *engines_of(const char *op, bool cuda, const char *quote)
{
    char *text = cli_format("%s", "");
    const char *engine;
    for (int i = 0; (engine = mica_op_backend_engine(op, cuda, i)); i++) {
        char *longer = cli_format("%s%s%s%s%s", text, i ? ", " : "", quote, engine, quote);
        free(text);
        text = longer;
    }
    return text;
}

static void show_all(void)
{
    cli_table t;
    const char *op;
    cli_table_begin(&t, "operation|>fields|~CPU engines|~GPU engines|~what");
    for (int i = 0; (op = mica_op_name(i)); i++) {
        mica_field_info f;
        int fields = 0;
        char *cpu = engines_of(op, false, ""), *gpu = engines_of(op, true, "");
        while (mica_op_field(op, fields, &f) == MICA_OK) fields++;
        cli_cell(&t, "%s", op);
        cli_cell(&t, "%d", fields);
        cli_cell(&t, "%s", cpu);
        cli_cell(&t, "%s", gpu);
        cli_cell(&t, "%s", mica_op_doc(op));
        free(cpu);
        free(gpu);
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
}

static void show_fields(const char *op)
{
    cli_table t;
    mica_field_info f;
    cli_table_begin(&t, "field|type|~default|~meaning (values)");
    for (int i = 0; mica_op_field(op, i, &f) == MICA_OK; i++) {
        char *values = spellings(&f), zero[128];
        mica_op_default(op, i, zero, sizeof zero);
        cli_cell(&t, "%s", f.name);
        cli_cell(&t, "%s", f.type);
        cli_cell(&t, "%s", zero);
        cli_cell(&t, *values ? "%s (%s)" : "%s%s", f.doc, values);
        free(values);
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
}

static void show_arguments(const char *op)
{
    cli_table t;
    mica_arg_info a;
    const char *const *names;
    int n = passes(op, &names);
    char *header = cli_format("%s", "argument");
    for (int i = 0; i < n; i++) {
        char *longer = cli_format("%s|%s", header, names[i]);
        free(header);
        header = longer;
    }
    char *longer = cli_format("%s|~types", header);
    free(header);
    header = longer;
    cli_table_begin(&t, header);
    for (int i = 0; mica_op_arg(op, i, 0, &a) == MICA_OK; i++) {
        cli_cell(&t, "%s%s", a.name, a.optional ? " (optional)" : "");
        for (int pass = 0; pass < n; pass++) {
            mica_op_arg(op, i, pass, &a);
            cli_cell(&t, "%s", direction(a.dir));
        }
        char *types = types_of(&a);
        cli_cell(&t, "%s", types);
        free(types);
    }
    printf("\n");
    cli_table_print(&t, stdout);
    cli_table_end(&t);
    free(header);
}

static void show_engines(const char *op)
{
    cli_table t;
    cli_table_begin(&t, "on|~engines, best first");
    for (int cuda = 0; cuda < 2; cuda++) {
        char *engines = engines_of(op, cuda, "");
        cli_cell(&t, cuda ? "GPU" : "CPU");
        cli_cell(&t, "%s", engines);
        free(engines);
    }
    cli_table_print(&t, stdout);
    cli_table_end(&t);
}

static void show_op(const char *op)
{
    const char *name;
    double value;
    printf("%s%s%s: %s\n\n", cli_style(stdout, "bold"), op, cli_style(stdout, "off"),
           mica_op_doc(op));
    show_fields(op);
    show_arguments(op);
    int scalars = 0, at = 0;
    for (; mica_op_scalar(op, scalars, &name, &value) == MICA_OK; scalars++) {
        const bool next = scalars && at + (int)strlen(name) > 80;
        if (next) at = 0;
        at += printf("%s%s=%g",
                     !scalars ? "\nrun-time scalars: "
                     : next   ? ",\n  "
                              : ", ",
                     name, value);
    }
    printf(scalars ? "\n\n" : "\n");
    show_engines(op);
}

/* ---- Markdown ---- */

static void cell(const char *text)
{
    for (; *text; text++) {
        if (*text == '|') putchar('\\');
        putchar(*text == '\n' ? ' ' : *text);
    }
}

static void markdown_arguments(const char *op)
{
    const char *const *names;
    mica_arg_info a;
    int n = passes(op, &names);
    printf("\n| argument |");
    for (int i = 0; i < n; i++) printf(" %s |", names[i]);
    printf(" types |\n|--|--|");
    for (int i = 0; i < n; i++) printf("--|");
    for (int i = 0; mica_op_arg(op, i, 0, &a) == MICA_OK; i++) {
        printf("\n| `%s`%s |", a.name, a.optional ? " (optional)" : "");
        for (int pass = 0; pass < n; pass++) {
            mica_op_arg(op, i, pass, &a);
            printf(" %s |", direction(a.dir));
        }
        char *types = types_of(&a);
        printf(" %s |", types);
        free(types);
    }
    printf("\n");
}

static void markdown_op(const char *op)
{
    mica_field_info f;
    const char *name;
    double value;
    printf("## %s\n\n%s\n\n| field | type | default | values | meaning |\n|--|--|--|--|--|\n", op,
           mica_op_doc(op));
    for (int i = 0; mica_op_field(op, i, &f) == MICA_OK; i++) {
        char *values = spellings(&f), zero[128];
        mica_op_default(op, i, zero, sizeof zero);
        printf("| `%s` | %s | ", f.name, f.type);
        cell(zero);
        printf(" | ");
        cell(values);
        printf(" | ");
        cell(f.doc);
        printf(" |\n");
        free(values);
    }
    markdown_arguments(op);
    for (int i = 0; mica_op_scalar(op, i, &name, &value) == MICA_OK; i++)
        printf("%s`%s` (default %g)", i ? ", " : "\nRun-time scalars: ", name, value);
    char *cpu = engines_of(op, false, "`"), *gpu = engines_of(op, true, "`");
    printf("\n\nEngines, best first. CPU: %s. GPU: %s.\n\n", cpu, gpu);
    free(cpu);
    free(gpu);
}

static void markdown(void)
{
    const char *op;
    printf(
        "# Operations\n\nGenerated by `mica list --markdown`; do not edit.\n\n"
        "A problem line is the operation's name and `field=value` pairs. Tensors are written "
        "`dtype:dims[:layout or strides]`, axes `1x2x3`, lists `a,b`. The default is what a field "
        "means that is left out; in a descriptor, one that is left zero.\n\n");
    for (int i = 0; (op = mica_op_name(i)); i++) markdown_op(op);
}

/* ---- JSON ---- */

static json_t *json_fields(const char *op)
{
    json_t *fields = json_array();
    mica_field_info f;
    for (int i = 0; mica_op_field(op, i, &f) == MICA_OK; i++) {
        char zero[128];
        mica_op_default(op, i, zero, sizeof zero);
        json_t *o = json_pack("{ss ss sI ss ss}", "name", f.name, "type", f.type, "offset",
                              (json_int_t)f.offset, "default", zero, "doc", f.doc);
        json_t *values = json_array();
        for (int n = 0; f.spellings && f.spellings[n]; n++)
            json_array_append_new(values, json_string(f.spellings[n]));
        json_object_set_new(o, "values", values);
        json_array_append_new(fields, o);
    }
    return fields;
}

static json_t *json_arguments(const char *op)
{
    const char *const *names;
    mica_arg_info a;
    json_t *arguments = json_array();
    int n = passes(op, &names);
    for (int i = 0; mica_op_arg(op, i, 0, &a) == MICA_OK; i++) {
        static const char *const needs[] = {"", "needed", "inferred"};
        json_t *directions = json_object(), *need = json_object(), *types = json_array();
        json_t *o = json_pack("{ss sb ss* ss*}", "name", a.name, "optional", a.optional ? 1 : 0,
                              "like", a.like, "with", a.with);
        for (int pass = 0; pass < n; pass++) {
            mica_op_arg(op, i, pass, &a);
            json_object_set_new(directions, names[pass], json_string(direction(a.dir)));
            json_object_set_new(need, names[pass], json_string(needs[a.need]));
        }
        for (int d = 1; d < 32; d++)
            if (a.types >> d & 1)
                json_array_append_new(types, json_string(mica_dtype_name((mica_dtype)d)));
        json_object_set_new(o, "directions", directions);
        json_object_set_new(o, "need", need);
        json_object_set_new(o, "types", types);
        json_array_append_new(arguments, o);
    }
    return arguments;
}

static void json_op(FILE *f, const char *op)
{
    json_t *scalars = json_object(), *engines = json_array();
    json_t *cpu = json_array(), *gpu = json_array();
    const char *name;
    double value;
    for (int i = 0; mica_op_scalar(op, i, &name, &value) == MICA_OK; i++)
        json_object_set_new(scalars, name, json_real(value));
    for (int i = 0; (name = mica_op_engine(op, i)); i++)
        json_array_append_new(engines, json_string(name));
    for (int i = 0; (name = mica_op_backend_engine(op, false, i)); i++)
        json_array_append_new(cpu, json_string(name));
    for (int i = 0; (name = mica_op_backend_engine(op, true, i)); i++)
        json_array_append_new(gpu, json_string(name));
    cli_json_line(f,
                  json_pack("{ss ss so so so so so so}", "op", op, "doc", mica_op_doc(op), "fields",
                            json_fields(op), "arguments", json_arguments(op), "scalars", scalars,
                            "engines", engines, "cpu_engines", cpu, "gpu_engines", gpu));
}

static int to_json(const list *l)
{
    FILE *f = cli_json_open(l->options.json);
    const char *op;
    if (!f) return CLI_USAGE;
    for (int i = 0; i < l->options.arg_count; i++) json_op(f, l->options.args[i]);
    for (int i = 0; !l->options.arg_count && (op = mica_op_name(i)); i++) json_op(f, op);
    cli_json_close(f);
    return CLI_OK;
}

int cmd_list(int argc, char **argv)
{
    list l = {0};
    mica_field_info f;
    int code = CLI_OK;
    cli_parse(argc, argv, "list", options, parse, "[OPERATION...]", doc, &l);
    for (int i = 0; i < l.options.arg_count; i++) {
        if (mica_op_field(l.options.args[i], 0, &f) == MICA_OK) continue;
        cli_say("%s", mica_error());
        code = CLI_USAGE;
    }
    if (code == CLI_OK && l.options.json) {
        code = to_json(&l);
    } else if (code == CLI_OK && l.markdown) {
        markdown();
    } else if (code == CLI_OK && l.options.arg_count == 0) {
        show_all();
    } else if (code == CLI_OK) {
        for (int i = 0; i < l.options.arg_count; i++) {
            if (i) printf("\n");
            show_op(l.options.args[i]);
        }
    }
    cli_options_free(&l.options);
    return code;
}
