"""From text to text: a trained family of networks with its tokenizer."""

from crocodil.pipeline.canvases import Given
from crocodil.pipeline.family import Choices, Crocodil, Generation, Method
from crocodil.pipeline.folder import Settings

__all__ = ["Choices", "Crocodil", "Generation", "Given", "Method", "Settings"]
