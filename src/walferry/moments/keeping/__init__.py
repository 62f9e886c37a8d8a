"""What is needed to restore any later moment of tables is kept.

Start with `keep`, which has the phases and the loop: `bases` takes snapshots, `base_files` copies their files, `ends`
copies the ends of open logs, and `letting_go` deletes what `retention` no longer needs. Closed logs are copied by
`replay.keeping.by_copies`.
"""
