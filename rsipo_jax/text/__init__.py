"""Text in and out of the policy: tokenizers behind one protocol, chat formats, and the tags of a response.

`tokenizer.py` holds the `Tokenizer` protocol and `load_tokenizer`; `sentencepiece_tokenizer.py` is what a
fresh network uses and `hf_tokenizer.py` what a Hugging Face checkpoint brings; `tags.py` names the tags of
a response.

Two properties are kept by both kinds. Text never turns into a special id, so nothing an environment or a
policy writes can open or close a turn. And a message is a sequence of parts that are tokenised one by one,
so a prompt with a skill is the prompt without it plus exactly the skill's own tokens.
"""
