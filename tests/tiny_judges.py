"""Tiny random judges in the folders that transformers writes; every class is the one that real judges have."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

START = "<|start|>"
PROGRAMS = [f"def f{n}(x):\n    y = x * {n}\n    return y + {n * n}\n" for n in range(40)]


def tokenizer(special: list[str]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(PROGRAMS, trainer)
    return made


def llama(seed: int = 0, *, vocab_size: int, positions: int = 128) -> LlamaForCausalLM:
    """With weights large enough to have opinions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=positions, bos_token_id=0,
            eos_token_id=0, initializer_range=0.3, tie_word_embeddings=True,
        )  # fmt: skip
        return LlamaForCausalLM(config).eval()


def save_language_model(folder, seed=0, positions=128):
    words = tokenizer([START])
    llama(seed, vocab_size=words.get_vocab_size(), positions=positions).save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    return folder


def save_encoder(folder):
    words = tokenizer(["[PAD]", "[CLS]", "[SEP]"])
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    words.enable_truncation(8)  # as the MiniLM that is published: texts would be cut, and filled, in silence
    words.enable_padding(length=8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=words.get_vocab_size(), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=48, max_position_embeddings=64, initializer_range=0.3, pad_token_id=0,
        )  # fmt: skip
        BertModel(config).save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    return folder
