"""The Hub. Only this room and `leconvert.transfer` import ``huggingface_hub``.

The import happens when it is needed: a command that does not use the Hub does not pay for it.
"""
