"""Exchange with Hugging Face: folders of ``config.json`` and ``.safetensors`` in and out."""
