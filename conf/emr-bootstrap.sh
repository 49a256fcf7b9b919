#!/bin/bash
# Bootstrap action of an EMR cluster whose jobs use a lake; runs on every node.
#
#   Path  s3://my-bucket/lake/emr-bootstrap.sh
#   Args  1 folder with the wheel, job.py and spark-defaults.conf, such as s3://my-bucket/lake
#         2 name of the secret (AWS Secrets Manager) that holds the lake's URL
#
# The release must have Spark 4.0 or newer. The instance profile may read the folder and the secret, and use the bucket
# of the lake.
set -euo pipefail

folder=${1:?the folder with the wheel}
secret=${2:?the name of the secret with the URL of the lake}
# The oldest that the library runs on is 3.10.
python=${LAKE_PYTHON:-python3.11}

sudo mkdir -p /opt/lake /etc/lake
sudo chown "$(id -u)" /opt/lake /etc/lake

aws s3 cp --recursive --exclude '*' --include 'lake_spark-*.whl' "$folder/" /etc/lake/
aws s3 cp "$folder/job.py" /etc/lake/job.py
aws s3 cp "$folder/spark-defaults.conf" /etc/lake/spark-defaults.conf

command -v "$python" >/dev/null || sudo dnf install -y "$python" "$python-pip"
# Spark's own packages for Python come with Spark: they are found through PYTHONPATH, which spark-submit sets.
"$python" -m venv /opt/lake
/opt/lake/bin/python -m pip install --quiet /etc/lake/lake_spark-*.whl

# Only for the user that runs the driver. Not in a variable and not as an argument: both are shown in process lists.
(
    umask 077
    aws secretsmanager get-secret-value --secret-id "$secret" --query SecretString --output text >/etc/lake/url
)
