# The cluster's bucket: Terraform's state, the list of machines, and data/ for what you copy there.

data "aws_caller_identity" "me" {}

resource "aws_s3_bucket" "cluster" {
  #checkov:skip=CKV_AWS_18:only the cluster's machines and its owner read it
  #checkov:skip=CKV_AWS_144:data to keep belong in a bucket that outlives the cluster
  #checkov:skip=CKV_AWS_145:encrypted with the key of AWS
  #checkov:skip=CKV2_AWS_61:old versions of the state are wanted, and `make down` removes the bucket
  #checkov:skip=CKV2_AWS_62:nothing waits for a change in it
  bucket = "${var.name}-${data.aws_caller_identity.me.account_id}-${var.region}"
  tags   = { Name = var.name }
}

resource "aws_s3_bucket_versioning" "cluster" {
  bucket = aws_s3_bucket.cluster.id
  versioning_configuration { status = "Enabled" }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "cluster" {
  bucket = aws_s3_bucket.cluster.id
  rule {
    apply_server_side_encryption_by_default { sse_algorithm = "AES256" }
  }
}

resource "aws_s3_bucket_public_access_block" "cluster" {
  bucket                  = aws_s3_bucket.cluster.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

data "aws_iam_policy_document" "bucket" {
  statement {
    sid       = "OnlyEncryptedConnections"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.cluster.arn, "${aws_s3_bucket.cluster.arn}/*"]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_s3_bucket_policy" "cluster" {
  bucket     = aws_s3_bucket.cluster.id
  policy     = data.aws_iam_policy_document.bucket.json
  depends_on = [aws_s3_bucket_public_access_block.cluster]
}

# `headway-cluster` on the head node fetches it.
resource "aws_s3_object" "hosts" {
  bucket       = aws_s3_bucket.cluster.id
  key          = "hosts.toml"
  content      = local.hosts_toml
  content_type = "application/toml"
  depends_on   = [aws_s3_bucket_versioning.cluster, aws_s3_bucket_server_side_encryption_configuration.cluster]
}
