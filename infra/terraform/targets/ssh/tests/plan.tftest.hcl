# `headway` is replaced by `true`, so that nothing is created. `terraform test` from this folder.
variables {
  cluster_dir = "build/tftest"
  headway     = "true"
  facts       = "tests/three.json"
}

run "rejects_half_a_machine" {
  command = plan
  variables {
    nodes = 1.5
  }
  expect_failures = [var.nodes]
}

run "without_facts_there_are_no_machines" {
  command = plan
  variables {
    facts = "tests/absent.json"
  }
  assert {
    condition     = length(terraform_data.machine) == 0
    error_message = "machines come from what the check has written"
  }
}

run "has_a_resource_for_each_machine" {
  command = apply
  variables {
    facts = "tests/three.json"
  }
  assert {
    condition     = keys(output.machines) == ["a", "b", "c"]
    error_message = "one resource per machine"
  }
}

run "the_same_facts_change_no_machine" {
  command = plan
  assert {
    condition     = output.machines == run.has_a_resource_for_each_machine.machines
    error_message = "the ids are known in the plan, so no machine is replaced"
  }
}

run "replaces_a_silent_machine_and_a_changed_one" {
  command = apply
  variables {
    facts = "tests/one_silent.json"
  }
  assert {
    condition = {
      for name, id in output.machines : name => id == run.has_a_resource_for_each_machine.machines[name]
    } == { a = true, b = false, c = false }
    error_message = "b does not answer, c has lost a GPU"
  }
}
