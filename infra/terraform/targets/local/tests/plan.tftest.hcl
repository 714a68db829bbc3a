# Plans only: starts nothing. `terraform test` from this folder.
variables {
  cluster_dir = "build/tftest"
}

run "rejects_zero_nodes" {
  command = plan
  variables {
    nodes = 0
  }
  expect_failures = [var.nodes]
}

run "rejects_half_a_node" {
  command = plan
  variables {
    nodes = 1.5
  }
  expect_failures = [var.nodes]
}

run "plans_every_node" {
  command = plan
  variables {
    nodes = 3
  }
  assert {
    condition     = length(terraform_data.node) == 3
    error_message = "one resource per node"
  }
}
