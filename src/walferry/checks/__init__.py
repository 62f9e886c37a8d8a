"""Great Expectations suites over small frames of results: `suites` has them, `validation` judges a frame by one."""
