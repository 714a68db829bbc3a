# No network, no credentials: the provider only tells its schema. `terraform test` from this folder.
mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{\"Version\":\"2012-10-17\",\"Statement\":[]}" }
  }
  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::123456789012:instance-profile/headway-node" }
  }
  mock_resource "aws_sns_topic" {
    defaults = { arn = "arn:aws:sns:us-east-1:123456789012:headway-alerts" }
  }
  mock_resource "aws_s3_bucket" {
    defaults = { arn = "arn:aws:s3:::headway-123456789012-us-east-1" }
  }
  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:us-east-1:123456789012:log-group:/headway/headway" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0123456789abcdef0" }
  }
}

variables {
  instance_type = "p5.48xlarge"
  ami           = "ami-0123456789abcdef0"
  nodes         = 2
}

run "a_p5_cluster" {
  command = apply
  assert {
    condition     = length(aws_network_interface.card) == 64 && output.cards == 32
    error_message = "each p5 node has 32 cards"
  }
  assert {
    condition = alltrue([for key, card in aws_network_interface.card :
      card.interface_type == (endswith(key, ".0") ? "efa" : "efa-only") && card.security_groups == toset([aws_security_group.cluster.id])
    ])
    error_message = "card 0 carries IP and EFA, the others EFA alone, all in the cluster's group"
  }
  assert {
    condition     = length(aws_instance.node["1"].network_interface) == 32 && length(distinct([for one in aws_instance.node["1"].network_interface : one.network_card_index])) == 32
    error_message = "an instance has its 32 cards, each on a network card of its own"
  }
  assert {
    condition = alltrue([for rule in [aws_vpc_security_group_ingress_rule.self, aws_vpc_security_group_egress_rule.self] :
      rule.referenced_security_group_id == aws_security_group.cluster.id && rule.security_group_id == aws_security_group.cluster.id && rule.ip_protocol == "-1"
    ])
    error_message = "EFA needs every protocol from and to the group itself"
  }
  assert {
    condition     = tolist(aws_network_interface.card["1.0"].private_ips)[0] == "10.42.128.17" && output.addresses["0"] == "10.42.128.16"
    error_message = "node K has a fixed address"
  }
  assert {
    condition     = aws_instance.node["1"].tags == tomap({ Name = "headway-1" }) && local.tags == { headway-cluster = "headway" }
    error_message = "hooks find machines by these tags"
  }
  assert {
    condition     = length(aws_placement_group.nodes) == 1 && length(aws_launch_template.node.capacity_reservation_specification) == 0
    error_message = "EFA without a reservation is placed close together"
  }
  assert {
    condition     = aws_launch_template.node.instance_initiated_shutdown_behavior == "stop" && aws_launch_template.node.metadata_options[0].http_tokens == "required"
    error_message = "a node that powers itself off stops; its metadata need a token"
  }
  assert {
    condition     = alltrue([for kind, text in local.boot : length(text) < 16384])
    error_message = "EC2 takes 16 KiB of user data"
  }
  assert {
    condition     = length(aws_cloudwatch_metric_alarm.lost_node) == 2 && length(aws_budgets_budget.month) == 0
    error_message = "an alarm for each node; a budget only if one is set"
  }
}

run "the_bucket_is_private_versioned_and_encrypted" {
  command = apply
  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.cluster.block_public_acls,
      aws_s3_bucket_public_access_block.cluster.block_public_policy,
      aws_s3_bucket_public_access_block.cluster.ignore_public_acls,
      aws_s3_bucket_public_access_block.cluster.restrict_public_buckets,
    ])
    error_message = "nobody outside reads it"
  }
  assert {
    condition     = aws_s3_bucket_versioning.cluster.versioning_configuration[0].status == "Enabled"
    error_message = "a state that was overwritten can be fetched"
  }
  assert {
    condition     = one(aws_s3_bucket_server_side_encryption_configuration.cluster.rule).apply_server_side_encryption_by_default[0].sse_algorithm == "AES256"
    error_message = "encrypted at rest"
  }
}

run "a_p4d_node_has_four_cards" {
  command = plan
  variables {
    instance_type = "p4d.24xlarge"
  }
  assert {
    condition     = length(aws_network_interface.card) == 8
    error_message = "4 cards for each of 2 nodes"
  }
}

run "a_plain_type_in_a_reservation_has_a_budget_and_no_head" {
  command = apply
  variables {
    instance_type        = "g5.xlarge"
    capacity_reservation = "cr-0123456789abcdef0"
    budget_usd_month     = 500
    head                 = false
    shared               = "fsx"
  }
  assert {
    condition     = length(aws_network_interface.card) == 2 && length(aws_placement_group.nodes) == 0 && length(aws_instance.head) == 0
    error_message = "one plain card each, no placement group, no head node"
  }
  assert {
    condition     = aws_launch_template.node.capacity_reservation_specification[0].capacity_reservation_target[0].capacity_reservation_id == "cr-0123456789abcdef0"
    error_message = "the nodes are launched in the reservation"
  }
  assert {
    condition     = aws_budgets_budget.month[0].limit_amount == "500" && length(aws_budgets_budget.month[0].notification) == 2
    error_message = "alerts at 80 % and before 100 %"
  }
  assert {
    condition     = length(aws_fsx_lustre_file_system.shared) == 1 && length(aws_efs_file_system.shared) == 0
    error_message = "/shared is FSx"
  }
  assert {
    condition     = aws_iam_role_policy_attachment.shell.role == "headway-us-east-1-node" && output.head == aws_instance.node["0"].id
    error_message = "without a head node, one enters by node 0"
  }
}

run "no_nodes" {
  command = plan
  variables {
    nodes = 0
  }
  expect_failures = [var.nodes]
}

run "more_nodes_than_the_quota" {
  command = plan
  variables {
    nodes     = 5
    max_nodes = 4
  }
  expect_failures = [var.nodes]
}

run "an_unknown_type" {
  command = plan
  variables {
    instance_type = "p9.48xlarge"
  }
  expect_failures = [var.instance_type]
}

run "more_cards_than_the_type_has" {
  command = plan
  variables {
    cards = 33
  }
  expect_failures = [var.cards]
}

run "an_address_range_that_is_too_small" {
  command = plan
  variables {
    network = "10.0.0.0/26"
    nodes   = 16
  }
  expect_failures = [var.network]
}

run "no_address_range" {
  command = plan
  variables {
    network = "10.0.0.0"
  }
  expect_failures = [var.network]
}

run "a_capacity_block_without_its_id" {
  command = plan
  variables {
    capacity_block = true
  }
  expect_failures = [var.capacity_block]
}

run "too_little_time_to_start_a_run" {
  command = plan
  variables {
    idle_stop_min = 1
  }
  expect_failures = [var.idle_stop_min]
}
