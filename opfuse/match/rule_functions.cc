#include "opfuse/match/rule_functions.h"

#include <algorithm>
#include <iterator>

namespace opfuse::match {
namespace {

constexpr RuleFunction kFunctions[] = {
    {"abs", "aten.abs"},
    {"add", "aten.add.Tensor"},
    {"addcdiv", "aten.addcdiv"},
    {"addcmul", "aten.addcmul"},
    {"addmm", "aten.addmm"},
    {"amax", "aten.amax"},
    {"baddbmm", "aten.baddbmm"},
    {"batch_norm", "aten.native_batch_norm"},
    {"bmm", "aten.bmm"},
    {"cat", "aten.cat"},
    {"clamp", "aten.clamp"},
    {"clamp_max", "aten.clamp_max"},
    {"clamp_min", "aten.clamp_min"},
    {"constant_pad", "aten.constant_pad_nd"},
    {"convolution", "aten.convolution"},
    {"cos", "aten.cos"},
    {"div", "aten.div.Tensor"},
    {"dropout", "aten.native_dropout"},
    {"erf", "aten.erf"},
    {"exp", "aten.exp"},
    {"expm1", "aten.expm1"},
    {"gather", "aten.gather"},
    {"gelu", "aten.gelu"},
    {"group_norm", "aten.native_group_norm"},
    {"hardsigmoid", "aten.hardsigmoid"},
    {"hardswish", "aten.hardswish"},
    {"hardtanh", "aten.hardtanh"},
    {"layer_norm", "aten.native_layer_norm"},
    {"lerp", "aten.lerp.Scalar"},
    {"log", "aten.log"},
    {"log1p", "aten.log1p"},
    {"log_softmax", "aten._log_softmax"},
    {"logsumexp", "aten.logsumexp"},
    {"masked_fill", "aten.masked_fill.Scalar"},
    {"max", "aten.max.dim"},
    {"maximum", "aten.maximum"},
    {"mean", "aten.mean.dim"},
    {"mean_all", "aten.mean"},
    {"minimum", "aten.minimum"},
    {"mm", "aten.mm"},
    {"mul", "aten.mul.Tensor"},
    {"neg", "aten.neg"},
    {"norm", "aten.linalg_vector_norm"},
    {"permute", "aten.permute"},
    {"pow", "aten.pow.Tensor_Scalar"},
    {"reciprocal", "aten.reciprocal"},
    {"relu", "aten.relu"},
    {"rsqrt", "aten.rsqrt"},
    {"sigmoid", "aten.sigmoid"},
    {"silu", "aten.silu"},
    {"sin", "aten.sin"},
    {"slice", "aten.slice.Tensor"},
    {"softmax", "aten._softmax"},
    {"softplus", "aten.softplus"},
    {"sqrt", "aten.sqrt"},
    {"squeeze", "aten.squeeze.dim"},
    {"stack", "aten.stack"},
    {"sub", "aten.sub.Tensor"},
    {"sum", "aten.sum.dim_IntList"},
    {"sum_all", "aten.sum"},
    {"tanh", "aten.tanh"},
    {"transpose", "aten.transpose.int"},
    {"unbind", "aten.unbind.int"},
    {"unsqueeze", "aten.unsqueeze"},
    {"var", "aten.var.correction"},
    {"var_mean", "aten.var_mean.correction"},
    {"view_as_complex", "aten.view_as_complex"},
    {"view_as_real", "aten.view_as_real"},
    {"where", "aten.where.self"},
};

}  // namespace

std::span<const RuleFunction> rule_functions() { return kFunctions; }

const RuleFunction* find_rule_function(std::string_view name) {
  auto it = std::ranges::find(kFunctions, name, &RuleFunction::name);
  return it == std::end(kFunctions) ? nullptr : &*it;
}

}  // namespace opfuse::match
