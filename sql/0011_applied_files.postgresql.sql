UPDATE wal_files SET
    packed = COALESCE((
        SELECT STRING_AGG(
            t.table_number || ':' || r.entries || ':' || r.cells
            || ':' || COALESCE(CAST(r.first_write_ms - wal_files.number AS TEXT), '')
            || ':' || COALESCE(CAST(r.last_write_ms - r.first_write_ms AS TEXT), ''), ' ')
        FROM wal_ranges r
        JOIN run_tables t ON t.run_id = r.run_id AND t.table_name = r.table_name
        WHERE r.run_id = wal_files.run_id AND r.file = wal_files.name
          AND (r.entries > 0 OR r.cells > 0 OR r.first_write_ms IS NOT NULL)
    ), ''),
    verified = COALESCE((
        SELECT STRING_AGG(CAST(t.table_number AS TEXT), ' ')
        FROM wal_ranges r
        JOIN run_tables t ON t.run_id = r.run_id AND t.table_name = r.table_name
        WHERE r.run_id = wal_files.run_id AND r.file = wal_files.name AND r.state = 'verified'
    ), '')
WHERE applied_end IS NOT NULL;

DELETE FROM wal_ranges
WHERE EXISTS (
          SELECT 1 FROM wal_files f
          WHERE f.run_id = wal_ranges.run_id AND f.name = wal_ranges.file AND f.applied_end IS NOT NULL
      )
  AND EXISTS (
          SELECT 1 FROM run_tables t
          WHERE t.run_id = wal_ranges.run_id AND t.table_name = wal_ranges.table_name
      );
