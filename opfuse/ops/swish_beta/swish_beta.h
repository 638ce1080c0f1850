#pragma once
// swish_beta: y = x * sigmoid(beta * x) with a learnable beta of one element. Kernels:
// ops/quick_gelu.

#include "opfuse/ops/quick_gelu/quick_gelu.h"
