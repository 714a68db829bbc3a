# What the machines may do at AWS. Any node may host a run's driver, which calls the hooks, so nodes
# and head node may stop and start the cluster's own machines, and nothing else of EC2.

data "aws_partition" "here" {}

locals {
  arn_prefix = "arn:${data.aws_partition.here.partition}"
  here       = "${var.region}:${data.aws_caller_identity.me.account_id}"
  # Whoever has a shell on the machines works there; Systems Manager carries it.
  entrance = var.head ? "head" : "node"
  assume = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "ec2.amazonaws.com" }
    }]
  })
}

data "aws_iam_policy_document" "machine" {
  statement {
    sid       = "PowerOfOwnMachines"
    actions   = ["ec2:StopInstances", "ec2:StartInstances"]
    resources = ["${local.arn_prefix}:ec2:${local.here}:instance/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/headway-cluster"
      values   = [var.name]
    }
  }
  statement {
    sid       = "FindMachines" # AWS cannot narrow this action to a resource
    actions   = ["ec2:DescribeInstances"]
    resources = ["*"]
    condition {
      test     = "StringEquals"
      variable = "aws:RequestedRegion"
      values   = [var.region]
    }
  }
  statement {
    sid       = "ListOfMachines"
    actions   = ["s3:GetObject"]
    resources = ["${aws_s3_bucket.cluster.arn}/hosts.toml"]
  }
  statement {
    sid       = "Data" # not the state, which the same bucket holds
    actions   = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]
    resources = ["${aws_s3_bucket.cluster.arn}/data/*"]
  }
  statement {
    sid       = "ListData"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.cluster.arn]
    condition {
      test     = "StringLike"
      variable = "s3:prefix"
      values   = ["data/*"]
    }
  }
  statement {
    sid       = "Log"
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents"]
    resources = ["${aws_cloudwatch_log_group.cluster.arn}:*"]
  }
}

resource "aws_iam_role" "machine" {
  for_each           = var.head ? toset(["head", "node"]) : toset(["node"])
  name               = "${var.name}-${var.region}-${each.key}"
  path               = "/headway/${var.name}/"
  assume_role_policy = local.assume
}

resource "aws_iam_role_policy" "machine" {
  for_each = aws_iam_role.machine
  name     = "cluster"
  role     = each.value.name
  policy   = data.aws_iam_policy_document.machine.json
}

resource "aws_iam_role_policy_attachment" "shell" {
  role       = aws_iam_role.machine[local.entrance].name
  policy_arn = "${local.arn_prefix}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "machine" {
  for_each = aws_iam_role.machine
  name     = each.value.name
  path     = "/headway/${var.name}/"
  role     = each.value.name
}
