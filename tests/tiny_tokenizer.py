"""A tokenizer for the LLaDA of tests/fixtures: 384 tokens with its special ids, and a chat template."""

import json
import shutil
from itertools import product
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BOS, EOS, EOT, START, END = 10, 11, 12, 14, 15
# As in LLaDA's Base, no token has the name of a mask: its id, 13, is in config.json alone.
SPECIAL = {
    "<|startoftext|>": BOS,
    "<|endoftext|>": EOS,
    "<|eot_id|>": EOT,
    "<|start_header_id|>": START,
    "<|end_header_id|>": END,
}
MASK = 13
TEMPLATE = (
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "{% if message['role'] == 'tool' %}{{ raise_exception('there are no tools') }}{% endif %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n{% endif %}"
)


def with_tokenizer(checkpoint: Path, out: Path, *, chat: bool = True) -> Path:
    """Copy a checkpoint and write its tokenizer beside the weights."""
    shutil.copytree(checkpoint, out)
    tokenizer().save(str(out / "tokenizer.json"))
    config = {"bos_token": "<|startoftext|>", "eos_token": {"content": "<|endoftext|>"}, "add_bos_token": False}
    config |= {"chat_template": TEMPLATE} if chat else {}
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    return out


def tokenizer() -> Tokenizer:
    """The bytes of ASCII, the special tokens, and short words under the ids that are left: readable nonsense."""
    vocab = dict(SPECIAL)
    free = (number for number in range(384) if number not in (*SPECIAL.values(), MASK))
    ascii_bytes = (*map(chr, range(33, 127)), *(chr(256 + code) for code in range(34)))  # in GPT-2's alphabet
    words = ("Ġ" + "".join(letters) for letters in product("bdklmnprst", "aeiou", "mnrst"))
    vocab |= dict(zip([*ascii_bytes, *words], free, strict=False))
    made = Tokenizer(models.BPE(vocab, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return made
