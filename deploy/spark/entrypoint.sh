#!/usr/bin/env bash
# What a container of Spark runs. On Kubernetes Spark starts an executor's with the word "executor" and says in the
# environment what it is to be; everything else is a command, such as `detent run shop.py`.
set -euo pipefail

if [ "${1:-}" != executor ]; then
  exec "$@"
fi

SPARK_HOME=${SPARK_HOME:-$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')}
export SPARK_HOME

options=()
while IFS= read -r name; do
  options+=("${!name}")
done < <(compgen -e SPARK_JAVA_OPT_ | sort -t_ -k4 -n)

exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" \
  "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
