"""Ollama through its own API: the OpenAI layer that it has cuts long prompts and cannot say how to avoid it."""

from adapters.ollama.adapter import OllamaAdapter

__all__ = ["OllamaAdapter"]
