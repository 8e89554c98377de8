// Sizes and places of everything in the structs that Python spells out again, so that it can check its own spelling.
#pragma once
#include <cstddef>

#include "rows.h"

namespace penstock {

// Of each struct its size, then where each field begins, in their order.
inline const int32_t kLayout[] = {
#define PENSTOCK_AT(type, field) (int32_t)offsetof(type, field)
    (int32_t)sizeof(Matrix), PENSTOCK_AT(Matrix, data), PENSTOCK_AT(Matrix, bias),
    PENSTOCK_AT(Matrix, row_scales), PENSTOCK_AT(Matrix, bits), PENSTOCK_AT(Matrix, has_minimum), PENSTOCK_AT(Matrix, num_rows), PENSTOCK_AT(Matrix, num_columns),

    (int32_t)sizeof(Layer), PENSTOCK_AT(Layer, qkv), PENSTOCK_AT(Layer, out), PENSTOCK_AT(Layer, gate_up),
    PENSTOCK_AT(Layer, down), PENSTOCK_AT(Layer, attention_norm), PENSTOCK_AT(Layer, attention_post_norm),
    PENSTOCK_AT(Layer, mlp_norm), PENSTOCK_AT(Layer, mlp_post_norm), PENSTOCK_AT(Layer, q_norm),
    PENSTOCK_AT(Layer, k_norm), PENSTOCK_AT(Layer, keys), PENSTOCK_AT(Layer, values), PENSTOCK_AT(Layer, key_scales),
    PENSTOCK_AT(Layer, value_scales), PENSTOCK_AT(Layer, window), PENSTOCK_AT(Layer, rotation),
    PENSTOCK_AT(Layer, scale), PENSTOCK_AT(Layer, softcap), PENSTOCK_AT(Layer, table),

    (int32_t)sizeof(Model), PENSTOCK_AT(Model, layers), PENSTOCK_AT(Model, norm), PENSTOCK_AT(Model, embedding),
    PENSTOCK_AT(Model, output), PENSTOCK_AT(Model, num_layers), PENSTOCK_AT(Model, hidden_size),
    PENSTOCK_AT(Model, num_heads), PENSTOCK_AT(Model, num_kv_heads), PENSTOCK_AT(Model, head_dim),
    PENSTOCK_AT(Model, rotary_dim), PENSTOCK_AT(Model, mlp_width), PENSTOCK_AT(Model, block_size),
    PENSTOCK_AT(Model, activation), PENSTOCK_AT(Model, invariant), PENSTOCK_AT(Model, eps),
    PENSTOCK_AT(Model, embedding_scale), PENSTOCK_AT(Model, logit_softcap), PENSTOCK_AT(Model, block_stride),

    (int32_t)sizeof(Step), PENSTOCK_AT(Step, token_ids), PENSTOCK_AT(Step, slots), PENSTOCK_AT(Step, block_tables),
    PENSTOCK_AT(Step, query_starts), PENSTOCK_AT(Step, contexts), PENSTOCK_AT(Step, cosines), PENSTOCK_AT(Step, sines),
    PENSTOCK_AT(Step, hidden), PENSTOCK_AT(Step, num_tokens), PENSTOCK_AT(Step, num_chunks),
    PENSTOCK_AT(Step, table_stride), PENSTOCK_AT(Step, reserved),

    (int32_t)sizeof(RowsStep), PENSTOCK_AT(RowsStep, tokens), PENSTOCK_AT(RowsStep, tables),
    PENSTOCK_AT(RowsStep, num_blocks), PENSTOCK_AT(RowsStep, cosines), PENSTOCK_AT(RowsStep, sines),
    PENSTOCK_AT(RowsStep, chunks), PENSTOCK_AT(RowsStep, hidden), PENSTOCK_AT(RowsStep, drawn),
    PENSTOCK_AT(RowsStep, token_stride), PENSTOCK_AT(RowsStep, table_stride), PENSTOCK_AT(RowsStep, num_rotations),
    PENSTOCK_AT(RowsStep, num_chunks), PENSTOCK_AT(RowsStep, draws), PENSTOCK_AT(RowsStep, yields),
    PENSTOCK_AT(RowsStep, num_tables),

    (int32_t)sizeof(Product), PENSTOCK_AT(Product, x), PENSTOCK_AT(Product, out), PENSTOCK_AT(Product, likeliest),
    PENSTOCK_AT(Product, num_rows), PENSTOCK_AT(Product, number), PENSTOCK_AT(Product, invariant),
    PENSTOCK_AT(Product, softcap),
#undef PENSTOCK_AT
};

}  // namespace penstock
