"""What the processes of a run leave in the ledger for each other: a person's answers, what the last look at each table
found, why the gate is shut, what a thread waits for. Each module is one kind of note, with who may rely on it."""
