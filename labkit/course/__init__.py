"""The course around the mechanisms: lessons made from their masters, and the command ``labkit``.

build     lessons/ from solutions/, answers blanked
lint      the rules that every master keeps
command   ``labkit lab | build | sweep | doctor | picture``
"""
