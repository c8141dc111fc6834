"""`UserFile` for what declares pipelines and transforms; consumers are declared in such files too."""

from __future__ import annotations

from detent.user_file import MODULE, UserFile

__all__ = ["MODULE", "UserFile"]
