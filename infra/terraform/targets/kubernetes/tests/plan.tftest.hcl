# No API server: the commands are `true`. `terraform test` from this folder.
variables {
  cluster_dir = "build/tftest"
  owner       = "0123abcd"
  headway     = "true"
  python      = "true"
}

run "rejects_a_size_without_a_number" {
  command = plan
  variables {
    claim_size = "much"
  }
  expect_failures = [var.claim_size]
}

run "uses_what_is_there_by_default" {
  command = plan
  assert {
    condition     = length(terraform_data.namespace) == 0 && length(terraform_data.claim) == 0
    error_message = "nothing is created unless it is asked for"
  }
}

run "plans_a_namespace_and_a_claim" {
  command = plan
  variables {
    create_namespace = true
    claim_size       = "1.5Ti"
    storage_class    = "nfs"
  }
  assert {
    condition     = length(terraform_data.namespace) == 1 && terraform_data.claim[0].input.size == "1.5Ti"
    error_message = "one resource for each"
  }
}
