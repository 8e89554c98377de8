"""Matrix products with weights [out, in]."""

from torch import Tensor
from torch.nn import functional

from penstock.runtime.models.spec import Activation
from penstock.runtime.ops.activation import gate
from penstock.runtime.ops.op import operation


@operation
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x, weight, bias)


@operation
def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """The gate of a pair of products: the first half of the matrix's rows makes gates, the second what they let through."""
    return gate(linear(x, weight, bias), activation)
