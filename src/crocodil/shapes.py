"""The tensors of the paper, by name.

B sequences, N token positions, V vocabulary, K registers, D register width; R rows picked out of the
B x N positions. The test run checks every annotated shape; production does not pay for it.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

TokenIds = Int[Tensor, "B N"]
Positions = Bool[Tensor, "B N"]  # a subset of all positions: the hidden ones, the visible ones ...
Places = Int[Tensor, "B P"]  # the same number of positions of every sequence, by index
Logits = Float[Tensor, "B N V"]
RowTokens = Int[Tensor, "R"]
RowLogits = Float[Tensor, "R V"]
PerSample = Float[Tensor, "B"]
PrefixLength = Int[Tensor, "B"]
RegisterBank = Float[Tensor, "B K D"]
RegisterTime = Float[Tensor, "B K"]  # diffusion time, 0 clean and 1 noise, register by register
