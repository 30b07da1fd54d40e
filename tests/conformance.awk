# The conformance matrix as a table: each behaviour, by each way of counting, on each store.
#
#   bash tests/run.sh conformance | awk -f tests/conformance.awk                                   from a run
#   cargo test --all-features --test suite -- --list conformance | awk -f tests/conformance.awk    from the list of tests
#
# m: in process, r: Redis, 6: Redis 6.2, v: Valkey; '!' behind one that failed, '-' where there is no test. Fails when a
# test failed, or when there is a hole: a behaviour that one of its group's ways or one of the stores is not tried by. What
# is about leases has no part in process.

/^test conformance::.* \.\.\. / || /^conformance::.*: test$/ {
  path = $1 == "test" ? $2 : substr($1, 1, length($1) - 1)
  is_bad = $NF != "ok" && $NF != "test"
  parts = split(path, part, "::")
  group = part[2] (parts > 4 ? " by each way" : "")
  way = parts > 4 ? part[3] : "of no one way"
  row = group ": " part[parts]
  if (!(row in of)) add(rows, ++rows[0], row)
  if (!(way in column)) add(ways, ++ways[0], way)
  of[row] = group
  column[way] = belongs[group, way] = 1
  has[row, way, part[parts - 1]] = is_bad ? "!" : "."
  tests++; bad += is_bad
}

END {
  split("memory redis redis_6_2 valkey", stores, " ")
  for (w = 1; w <= ways[0]; w++) print w " " ways[w]
  printf "\n%-88s", ""
  for (w = 1; w <= ways[0]; w++) printf " %-5s", w
  for (r = 1; r <= rows[0]; r++) {
    row = rows[r]
    printf "\n%-88s", row
    for (w = 1; w <= ways[0]; w++) printf " %-5s", (of[row], ways[w]) in belongs ? cell(row, ways[w]) : ""
  }
  printf "\n\n%d behaviours, %d ways, %d tests: %d failed, %d holes\n", rows[0], ways[0] - ("of no one way" in column), tests, bad, holes
  exit tests == 0 || bad > 0 || holes > 0
}

function cell(row, way,   s, mark, text) {
  for (s = 1; s <= 4; s++) {
    mark = has[row, way, stores[s]]
    text = text (mark ? substr("mr6v", s, 1) : "-") (mark == "!" ? mark : "")
    holes += !mark && !(s == 1 && of[row] == "leases")
  }
  return text
}

# Keeps a list in order.
function add(list, at, item) {
  for (; at > 1 && list[at - 1] > item; at--) list[at] = list[at - 1]
  list[at] = item
}
