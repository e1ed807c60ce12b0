"""Names for the tensor shapes of the paper.

B sequences, N token positions, V vocabulary size, K registers, D register width, R rows selected from the B x N
positions. Shapes are checked when the tests run; outside the tests the annotations cost nothing.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

TokenIds = Int[Tensor, "B N"]
Positions = Bool[Tensor, "B N"]  # a mask over positions, for example the hidden ones
PositionIndices = Int[Tensor, "B P"]  # position indices, the same number in every sequence
Logits = Float[Tensor, "B N V"]
LogProbs = Float[Tensor, "B N"]  # of one token per position
RowTokens = Int[Tensor, "R"]
RowLogits = Float[Tensor, "R V"]
PerSample = Float[Tensor, "B"]
PrefixLength = Int[Tensor, "B"]  # k: the demasker reads the first k registers
ReadLength = Int[Tensor, "B"]  # how many positions of each canvas the demasker reads
RegisterBank = Float[Tensor, "B K D"]
RegisterTime = Float[Tensor, "B K"]  # diffusion time of each register: 0 clean, 1 noise
