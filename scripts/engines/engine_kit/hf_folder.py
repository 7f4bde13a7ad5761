"""Write a Llama model from a GGUF file as a Hugging Face folder in bf16: `hf_folder.py SOURCE FOLDER`.

Needs torch, transformers, gguf and accelerate.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM


def write(source: Path, folder: Path) -> None:
    """Write configuration, weights in bf16, tokenizer and chat template of `source` into the new `folder`."""
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    loaded = LlamaForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    # The loaded model is marked as quantised and refuses to be saved; a fresh one with its weights is not.
    del loaded.config.quantization_config
    fresh = LlamaForCausalLM(loaded.config).to(torch.bfloat16)
    fresh.load_state_dict(loaded.state_dict())
    fresh.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
