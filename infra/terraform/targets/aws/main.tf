# AWS machines for the ssh engine. docs/howto/aws.md says what to set and what it costs.

terraform {
  required_version = ">= 1.9.0"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
  # door.sh moves the state into the cluster's own bucket after the first `make up`.
  backend "local" {}
}

provider "aws" {
  region = var.region
  # `make down` looks for everything with this tag, and the hooks touch nothing without it.
  default_tags {
    tags = local.tags
  }
}

locals {
  tags = { headway-cluster = var.name }
}
