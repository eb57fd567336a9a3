"""The Hub: nothing else in leconvert imports ``huggingface_hub``.

It is imported when it is needed: whoever does not name the Hub pays nothing for it.
"""
