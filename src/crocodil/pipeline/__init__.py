"""From text to text: a trained family of networks with its tokenizer."""

from crocodil.pipeline.canvases import Given
from crocodil.pipeline.family import Crocodil
from crocodil.pipeline.folder import Settings
from crocodil.pipeline.generation import Choices, Generation, Method

__all__ = ["Choices", "Crocodil", "Generation", "Given", "Method", "Settings"]
