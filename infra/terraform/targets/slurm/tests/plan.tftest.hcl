# `headway` is replaced by `true`, so that nothing is created. `terraform test` from this folder.
variables {
  cluster_dir = "build/tftest"
  headway     = "true"
}

run "rejects_half_a_machine" {
  command = plan
  variables {
    nodes = 1.5
  }
  expect_failures = [var.nodes]
}

run "passes_a_limit_on" {
  command = plan
  variables {
    nodes = 4
  }
  assert {
    condition     = terraform_data.settings.input.options == "--nodes 4"
    error_message = "the number is a limit of the cluster"
  }
}

run "has_no_limit_by_default" {
  command = apply
  assert {
    condition     = terraform_data.settings.output.options == ""
    error_message = "Slurm gives as many as a run asks for"
  }
}

run "a_new_limit_changes_the_settings" {
  command = apply
  variables {
    nodes = 2
  }
  assert {
    condition     = terraform_data.settings.id != run.has_no_limit_by_default.settings
    error_message = "it is given to the cluster"
  }
}
