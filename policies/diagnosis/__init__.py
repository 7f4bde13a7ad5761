"""Why a request took as long as it did: from its stages and what was predicted to the first step that explains it."""
