"""Operations: what encode, score and extract make of a request before the engine, and of its outputs after."""
