from tests.gateway.conftest import engine, model_folder, tokenizer

__all__ = ["engine", "model_folder", "tokenizer"]
