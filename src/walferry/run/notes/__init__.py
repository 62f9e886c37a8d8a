"""Notes that the processes of a run leave in the ledger for each other: a person's answers, the result of the last look
at each table, why the gate is shut, what a thread waits for. Each module is one kind of note."""
